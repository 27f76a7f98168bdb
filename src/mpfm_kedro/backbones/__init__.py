"""Frozen backbones: verified weights, construction, views, extraction."""
