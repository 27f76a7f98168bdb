"""Experiments: the protocol, trials and their cache, metrics and intervals."""
