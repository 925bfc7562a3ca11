"""The talk's network on paper: 10,000 servers, and how many connections each node then has.

Owns the arithmetic of tiers: applications talk to the node on their own box, local nodes to a few gateways, gateways to
their remotes and to other regions. Numbers come in, connections per kind of node go out.
It must not start anything.
Rule: the talk's: at most 500 connections at any node where brokers of a flat network had 6,000, and links that grow
with the number of nodes, not with its square.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log


@dataclass(frozen=True, slots=True)
class Paper:
    """A network with these numbers."""

    servers: int = 10_000
    processes_per_server: int = 30
    services: int = 1_300
    regions: int = 3
    uplinks: int = 2
    """Gateways a local node is linked to, so that one may fail."""
    fan_in_max: int = 400
    """Local nodes one gateway takes."""

    @property
    def gateways_per_region(self) -> int:
        """As many as the locals of a region need, and two at least."""
        per_region = ceil(self.servers / self.regions)
        return max(2, ceil(per_region * self.uplinks / self.fan_in_max))

    def connections(self) -> dict[str, int]:
        """Connections at the busiest node of each kind."""
        local = self.processes_per_server + self.uplinks
        gateway = self.fan_in_max + (self.gateways_per_region - 1) + (self.regions - 1)
        return {"local": local, "gateway": gateway}

    def links(self) -> int:
        """Connections between nodes in all."""
        gateways = self.regions * self.gateways_per_region
        within = self.regions * self.gateways_per_region * (self.gateways_per_region - 1) // 2
        between = gateways * (self.regions - 1) // 2
        return self.servers * self.uplinks + within + between

    def convergence_hops(self) -> int:
        """Steps from one local node to any other: up, across, down."""
        return 4 if self.regions > 1 else 2

    def convergence_s(self, hop_s: float = 0.05) -> float:
        """Until a change of one node is known everywhere; neighbours of a hop are told in parallel."""
        rounds = self.convergence_hops() + ceil(log(max(2, self.gateways_per_region), 2))
        return rounds * hop_s
