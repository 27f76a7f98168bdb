"""The pipeline fit."""
