"""Gateways to other systems."""
