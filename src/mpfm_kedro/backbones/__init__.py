"""Frozen backbones: verified weights, extraction, the feature store and its rows."""
