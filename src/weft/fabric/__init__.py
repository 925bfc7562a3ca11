"""Whole fabrics: one file that describes one, what differs from it, its paths, and its picture.

Owns the fabric file and everything that can be said about a fabric without being a node of it. Text and tables come in;
plans, estimates and drawings go out.
It must never open a connection: commands ask nodes, and hand over what they said.
The reference page is docs/reference/fabric.md.
"""

from weft.fabric.file import Fabric, Member, load

__all__ = ["Fabric", "Member", "load"]
