"""Stages, and the settings composed of them."""
