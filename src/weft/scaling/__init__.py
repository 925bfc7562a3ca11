"""How many instances of a service there should be, and starting and stopping them.

Owns scaling policies, the decision, and the drivers that carry it out. What queues and instances look like comes in,
with requests from outside (rules, the data pipeline); starts and stops go out, or alerts where those are wanted.
It must never look at a message, and never run inside a node's loop.
Rule: docs/guides/scaling.md.
"""

from weft.scaling.decide import Decision, Load, Request, Scaler
from weft.scaling.drivers import Commands, Driver, LocalProcesses
from weft.scaling.file import Service, load, parse
from weft.scaling.platforms import Cloud, Docker, Kubernetes

__all__ = [
    "Cloud",
    "Commands",
    "Decision",
    "Docker",
    "Driver",
    "Kubernetes",
    "Load",
    "LocalProcesses",
    "Request",
    "Scaler",
    "Service",
    "load",
    "parse",
]
