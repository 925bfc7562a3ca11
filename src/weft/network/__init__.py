"""A node in the fabric: links and routes that run, services that announce themselves, settings from a directory.

Owns what ties federation and the directory to one running node. Decisions come from `weft.federation`, entries from
`weft.directory`; changes, dials and control messages go out through the node's driver.
It must never touch a message of the users, and decide nothing that a controller should.
Start reading at `runner`; the guide is docs/guides/network.md.
"""

from weft.network.membership import Membership
from weft.network.runner import Network

__all__ = ["Membership", "Network"]
