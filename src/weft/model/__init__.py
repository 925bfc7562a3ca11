"""Values that every part of weft speaks in: events, changes, limits, errors.

Owns plain frozen classes and nothing that runs.
Controllers, node and kernel meet in these and in bytes; there is no other vocabulary.
It imports nothing of weft.
"""
