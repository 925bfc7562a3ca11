"""Decisions on exchanges, queues, bindings and addresses.

Owns what exists in each virtual host and the rules for changing it; `Topology` is the controller, the rest are its
parts.
Requests of peers come in as events; rows for the kernel's tables and answers go out as changes.
It never sees a message, and asks whether someone is allowed through a small interface, without knowing who answers.
The rules are AMQP 0-9-1's with RabbitMQ's extensions, and AMQP 1.0 part 3 for links.
"""

from weft.broker.fabric import FabricDesk
from weft.broker.settings import TopologySettings
from weft.broker.topology import Topology

__all__ = ["FabricDesk", "Topology", "TopologySettings"]
