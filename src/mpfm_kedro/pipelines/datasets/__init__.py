"""The list of datasets."""
