"""Who learns from what and who is tested: runs, methods, trials, and the memory of fits."""
