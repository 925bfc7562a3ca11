"""Bytes between this process and others: addresses, listening and dialled sockets, TLS contexts.

Owns everything that is true of any protocol over TCP. Endpoints come in as text, sockets go out; the bytes
themselves go to whatever `asyncio.Protocol` the caller makes.
It must never know AMQP, the kernel or a controller.
Errors are `ConfigError` (the text is wrong) and `Unavailable` (the machine says no), each with the endpoint or file in
its text.
"""

from weft.net.connect import connect
from weft.net.endpoint import Endpoint, parse_endpoint
from weft.net.listen import Listener, listen
from weft.net.tls import client_context, server_context

__all__ = [
    "Endpoint",
    "Listener",
    "client_context",
    "connect",
    "listen",
    "parse_endpoint",
    "server_context",
]
