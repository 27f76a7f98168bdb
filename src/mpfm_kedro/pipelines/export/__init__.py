"""The pipeline export."""
