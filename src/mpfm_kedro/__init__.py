"""Mixture Prototype Flow Matching for open-set supervised anomaly detection."""

__version__ = "0.1.0"
