"""What holds for the names of queues and exchanges, whoever gives them.

Owns how long a name may be, and what of it is dropped. Text comes in, text goes out.
It must never know what exists, nor which protocol a name came by: all of them get the same.
Rule: a name is a short string of AMQP 0-9-1, so it has at most 255 bytes; RabbitMQ drops line ends.
"""

from __future__ import annotations

NAME_BYTES_MAX = 255
FABRIC = "$fabric"
"""The queue at every node where other nodes speak to it."""


def clean_name(name: str) -> str:
    """The name without line ends, which RabbitMQ removes too. Other characters stay, whatever they are."""
    return name.replace("\r", "").replace("\n", "")
