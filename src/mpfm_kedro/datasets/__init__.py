"""The project's own Kedro datasets."""
