"""Detectors behind one interface: MPFM, rebuilt baselines, references."""
