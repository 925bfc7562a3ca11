"""What an operator may choose about entry.

Owns the frozen settings of the policy with their defaults; configuration fills them.
Nothing here may hold behaviour.
Bounds say why they have their number.
"""

from __future__ import annotations

from dataclasses import dataclass

from weft.policy.passwords import COST_DEFAULT
from weft.policy.scram import ITERATIONS_DEFAULT


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """Settings of `Policy`."""

    vhost: str = "/"
    """The virtual host that always exists, and that AMQP 1.0 peers get when they name none."""
    guest: bool = True
    """A new node has the user `guest` with password `guest`; False removes that user, unless its password was changed.
    """
    anonymous: bool = True
    """Peers on this machine may enter without a name, as `guest`."""
    loopback_users: frozenset[str] = frozenset({"guest"})
    """Users who may enter from this machine only: their passwords are known to all."""
    hash_cost: int = COST_DEFAULT
    """scrypt's n for new passwords."""
    scram: bool = False
    """Passwords are kept as verifiers of SCRAM: new ones at once, others after a login that tells them."""
    scram_iterations: int = ITERATIONS_DEFAULT
    """What a verifier costs whoever would guess, and whoever logs in."""
    workers: int = 2
    """Threads that verify passwords: each holds 16 MiB while it works, and more would only take the loop's core."""
    waiting_max: int = 256
    """Different passwords waiting to be verified: what two threads do in half of the ten seconds a peer has to enter.
    """
    remembered_max: int = 1_024
    """Users whose verified password is remembered (as a keyed hash), so that reconnecting costs microseconds."""
