"""Scaling: decisions, drivers, and the platforms they drive."""
