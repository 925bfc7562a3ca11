"""Management over HTTP: RabbitMQ's API as far as its ecosystem uses it, and weft's own beside it.

Owns the web server of a node and its routes. Requests come in with basic authentication; JSON goes out, and metrics as
text. Everything is asked of `manager`, as over AMQP.
It must never be imported unless `[http]` is configured, and never hold the loop for longer than a page takes.
Rule: docs/reference/http.md; the description of every route is served at `/api/openapi.json`.
"""

from weft.management.http.server import WebServer

__all__ = ["WebServer"]
