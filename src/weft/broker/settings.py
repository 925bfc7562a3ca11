"""What an operator may choose about the topology.

Owns the frozen settings of the broker with their defaults; configuration fills them.
Nothing here may hold behaviour.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TopologySettings:
    """Settings of `Topology`."""

    auto_create_queues: bool = True
    """An AMQP 1.0 link to a plain address that does not exist makes a durable queue of that name."""
