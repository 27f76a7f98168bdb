"""The study sensitivity."""
