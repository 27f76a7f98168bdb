"""The study comparison."""
