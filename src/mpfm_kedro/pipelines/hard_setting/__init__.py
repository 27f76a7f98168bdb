"""The hard setting."""
