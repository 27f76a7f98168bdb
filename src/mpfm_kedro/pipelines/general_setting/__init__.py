"""The general setting."""
