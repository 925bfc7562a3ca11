"""Tests of a whole node: its process, its disk, and what is left after a crash."""
