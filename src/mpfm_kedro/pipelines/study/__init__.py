"""The report of a study over several datasets."""
