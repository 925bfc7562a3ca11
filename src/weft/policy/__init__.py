"""Who may enter, and what they may touch.

Owns authentication, virtual hosts as places to enter, and permissions; `Policy` is the controller, the rest are its
parts.
Events come from the node, changes go back; answers that cost a slow hash are submitted later from a worker thread.
It knows nothing of exchanges, queues or bindings beyond their names.
Permissions follow RabbitMQ's access control guide: three patterns per user and virtual host.
"""

from weft.policy.policy import Policy
from weft.policy.settings import PolicySettings

__all__ = ["Policy", "PolicySettings"]
