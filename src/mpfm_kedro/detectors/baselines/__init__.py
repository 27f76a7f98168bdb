"""Baselines rebuilt from papers, and references, on the features of one frozen backbone."""
