"""Nodes of one process in a fabric."""
