"""Runs: who learns and who is tested."""
