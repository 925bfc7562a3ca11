"""Bytes between this process and others: addresses, listening and dialled sockets, TLS contexts.

Owns everything that is true of any protocol over TCP. Endpoints come in as text, sockets go out; the bytes
themselves go to whatever `asyncio.Protocol` the caller makes.
It must never know AMQP, the kernel or a controller.
It imports none of its modules: the client needs two of them, and not what listening needs.
Errors are `ConfigError` (the text is wrong) and `Unavailable` (the machine says no), each with the endpoint or file in
its text.
"""
