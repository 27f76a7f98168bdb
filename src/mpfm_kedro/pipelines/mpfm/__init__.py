"""MPFM: prototypes, flow training, calibration."""
