"""Metrics of trials, and their summary."""
