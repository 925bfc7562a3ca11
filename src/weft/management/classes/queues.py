"""Managed queues.

Owns reading, declaring, deleting, purging, moving and looking into queues by request. The kernel's counters and the
declaration make a row.
It must not route or settle on its own: moves happen in the kernel, a thousand messages at a time.
Rule: schema/management.json, class `queue`; permissions as over AMQP (`caller`).
"""

from __future__ import annotations

import asyncio
import base64

from weft.management.caller import Caller
from weft.management.classes.policies import applied_row
from weft.management.classes.tables import kernel_page
from weft.management.manager import Manager
from weft.management.provider import Provider, Values
from weft.management.query import Page, Query, Row
from weft.model.errors import Refused
from weft.node.local import Message

QUANTILES = ("p50_us", "p90_us", "p99_us", "max_us")
GET_COUNT_MAX = 1_000
GET_TIMEOUT_S = 1.0
"""How long messages on disk may take to be looked at."""
MOVE_STEP = 500
"""Messages moved in one turn of the loop."""
MOVE_COUNT_MAX = 2**63 - 1
COLUMNS_ROWS_MAX = 65_536
COLUMNS_BYTES = 4 << 20
"""Of one batch of columns: enough to make the way there and back worth it, little enough for one message."""


class Queues(Provider):
    """Every queue."""

    _table = "queues"

    def __init__(self, manager: Manager) -> None:
        self._manager = manager
        self._host = manager.host

    async def query(self, caller: Caller, query: Query) -> Page:
        return await kernel_page(self._host, self._table, caller, query, self._finish)

    def read(self, caller: Caller, vhost: str, name: str) -> Row:  # noqa: ARG002 - who may enter the host sees it
        queue = self._host.engine.queue_id(vhost, name)
        rows = [] if queue is None else self._host.engine.rows(self._table, [queue])
        if not rows:
            raise Refused(f"no {self._table[:-1]} '{name}' in virtual host '{vhost}'", 404)
        return self._finish(rows[0])

    def _finish(self, row: Row) -> Row:
        queue = self._host.topology.find_queue(row["vhost"], row["name"])
        if queue is not None:
            row["durable"] = queue.durable
            row["auto_delete"] = queue.auto_delete
            row["exclusive"] = queue.exclusive
            row["arguments"] = queue.arguments
            row["type"] = queue.arguments.get("x-queue-type", "classic")
            row |= applied_row(self._host.topology.applied(queue))
        row["types"] = types_told(self._host.engine.types(row["id"])) if row.get("types") else {}
        row["state"] = "quiesced" if self._manager.is_quiesced else "running"
        return row

    async def create(self, caller: Caller, vhost: str, name: str, values: Values) -> str:
        if not name:
            raise Refused("a queue needs a name", 400)
        caller.need("configure", vhost, name)
        arguments = values.get("arguments") or {}
        dead_letters = arguments.get("x-dead-letter-exchange")
        if isinstance(dead_letters, str):
            caller.need("read", vhost, name)
            caller.need("write", vhost, dead_letters)
        durable, auto_delete = values.get("durable", True), values.get("auto_delete", False)
        topology = self._host.topology
        self._host.apply(
            topology.declare_queue(vhost, name, durable=durable, auto_delete=auto_delete, arguments=arguments)
        )
        return name

    async def delete(self, caller: Caller, vhost: str, name: str, options: Values) -> None:
        caller.need("configure", vhost, name)
        self.read(caller, vhost, name)
        flags = {"if_unused": bool(options.get("if_unused")), "if_empty": bool(options.get("if_empty"))}
        self._host.apply(self._host.topology.delete_queue(vhost, name, **flags))

    async def call(self, caller: Caller, vhost: str, name: str, operation: str, arguments: Values) -> Values:
        self.read(caller, vhost, name)
        caller.need("read", vhost, name)
        match operation:
            case "purge":
                count = self._host.engine.purge(vhost, name)
                self._host.driver.advance_soon()
                return {"count": count}
            case "move":
                return await self._move(caller, vhost, name, arguments)
            case "get":
                return {"messages": await self._get(vhost, name, arguments)}
        return await super().call(caller, vhost, name, operation, arguments)

    async def _move(self, caller: Caller, vhost: str, name: str, arguments: Values) -> Values:
        address, left = arguments.get("to"), arguments.get("count") or MOVE_COUNT_MAX
        target = None
        if address is not None:
            target = self._host.topology.resolve(vhost, address)
        caller.need("write", vhost, "" if target is None else target[0])
        present = self._host.engine.queue_stats(vhost, name)
        left = min(left, present[0] if present else 0)
        moved = 0
        while left > 0:
            count, waits, refused = self._host.engine.move_messages(vhost, name, target, min(left, MOVE_STEP))
            self._host.driver.advance_soon()
            moved, left = moved + count, left - count
            if refused and not moved:
                where = "the queue it died in" if target is None else f"'{address}'"
                raise Refused(f"the next message of '{name}' was not taken by {where}", 409)
            if refused or not (count or waits):
                break
            await asyncio.sleep(0.01 if waits else 0)
        return {"count": moved}

    async def _get(self, vhost: str, name: str, arguments: Values) -> list[Values]:
        count = min(max(arguments.get("count") or 1, 1), GET_COUNT_MAX)
        mode = arguments.get("ackmode") or "ack_requeue_true"
        outcomes = {
            "ack_requeue_true": Message.release,
            "reject_requeue_true": Message.release,
            "ack_requeue_false": Message.accept,
            "reject_requeue_false": Message.reject,
        }
        if mode not in outcomes:
            raise Refused(f"ackmode is one of {', '.join(outcomes)}", 400)
        present = self._host.engine.queue_stats(vhost, name)
        ready = present[0] if present else 0
        wanted = min(count, ready)
        taken: list[Message] = []
        async with self._host.driver.local.subscribe(vhost, name, max(wanted, 1)) as receiver:
            try:
                async with asyncio.timeout(GET_TIMEOUT_S):
                    while len(taken) < wanted:
                        taken.append(await anext(receiver))
            except (TimeoutError, StopAsyncIteration):
                pass  # others were faster, or the disk is slow: these are those we got
            finally:
                for message in reversed(taken):
                    outcomes[mode](message)
        limit = arguments.get("truncate")
        as_text = arguments.get("encoding") != "base64"
        left = ready
        return [_told(message, limit, as_text, left := left - 1) for message in taken]


class Streams(Queues):
    """Every queue that is a stream."""

    _table = "streams"

    def _finish(self, row: Row) -> Row:
        queue = self._host.topology.find_queue(row["vhost"], row["name"])
        if queue is not None:
            row["number"] = queue.number
        return super()._finish(row)

    async def call(self, caller: Caller, vhost: str, name: str, operation: str, arguments: Values) -> Values:
        row = self.read(caller, vhost, name)
        caller.need("read", vhost, name)
        if operation == "columns":
            return {"arrow": await self._columns(vhost, name, row, arguments), "number": row["number"]}
        return await super().call(caller, vhost, name, operation, arguments)

    async def _columns(self, vhost: str, name: str, row: Row, arguments: Values) -> bytes:
        """One batch; only what is safe, and made on a thread, since the node has others to serve."""
        start, end = arguments.get("start") or 0, arguments.get("end")
        end = row["safe_offset"] if end is None else max(0, min(end, row["safe_offset"]))
        start = max(0, min(start, end))
        rows = min(max(arguments.get("rows") or COLUMNS_ROWS_MAX, 1), COLUMNS_ROWS_MAX)
        try:
            stream = self._host.engine.read_log(
                vhost, name, start, end, arguments.get("columns") or None,
                batch_rows=rows, batch_bytes=COLUMNS_BYTES,
            )  # fmt: skip
        except ValueError as error:
            raise Refused(str(error), 400) from None
        return await asyncio.to_thread(stream.first_as_ipc)

    async def create(self, caller: Caller, vhost: str, name: str, values: Values) -> str:
        arguments = (values.get("arguments") or {}) | {"x-queue-type": "stream"}
        return await super().create(caller, vhost, name, values | {"arguments": arguments})


def types_told(types: list[tuple[str, int, tuple[int, int, int, int]]]) -> Values:
    """Time in queue by type of message."""
    return {name: {"count": count, **dict(zip(QUANTILES, row, strict=True))} for name, count, row in types}


def _told(message: Message, truncate: int | None, as_text: bool, left: int) -> Values:
    """A message as RabbitMQ's API tells it."""
    body = message.body if truncate is None else message.body[: max(truncate, 0)]
    text = _text(body) if as_text else None
    return {
        "payload_bytes": len(message.body),
        "redelivered": message.redelivered,
        "exchange": message.exchange,
        "routing_key": message.routing_key,
        "message_count": max(left, 0),
        "properties": message.properties,
        "payload": base64.b64encode(body).decode() if text is None else text,
        "payload_encoding": "base64" if text is None else "string",
    }


def _text(body: bytes) -> str | None:
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None
