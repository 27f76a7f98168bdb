"""The pipeline predict."""
