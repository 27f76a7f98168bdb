"""The study ablation."""
