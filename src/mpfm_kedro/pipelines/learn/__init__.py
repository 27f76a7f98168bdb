"""The pipeline learn."""
