"""Scores of the test samples."""
