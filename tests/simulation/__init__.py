"""Whole fabrics in one process, from a seed: real nodes on a loop, a clock and a network that are invented."""
