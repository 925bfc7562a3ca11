"""Management over AMQP: requests to the address `$management`, answered to their reply-to.

Owns one receiver per virtual host and the form of requests and answers. A message with application properties
`operation` and `type` comes in by either protocol; one message goes out with `statusCode` and `statusDescription`.
It must never trust what a message says of its sender: who asks is who entered by the connection it came from.
Rules: the AMQP management pattern as Qpid Dispatch applies it (docs/guides/management.md); one request at a time per
virtual host, at the pace of `REQUESTS_MAX`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar
from urllib.parse import quote, unquote

from weft._kernel import decode_value
from weft.management.caller import Caller
from weft.management.manager import BY_NAME, Manager
from weft.management.peers import Peers
from weft.management.provider import Values
from weft.management.query import COUNT_MAX, Query, each
from weft.management.reading import json_value
from weft.management.writing import amqp_document, json_document
from weft.model.changes import DeclareQueue
from weft.model.errors import ConfigError, LocalProtocolError, Refused, Unavailable
from weft.node.local import Message, Receiver

ADDRESS = "$management"
SELF_TYPE = "org.amqp.management"
NODE_CONN = 0
"""The connection the queue of requests belongs to: none, so that only the node takes from it."""
REQUESTS_MAX = 32
"""Requests taken from the queue at once; the rest wait in it."""
BODY_TYPE = "amqp-1.0"
"""The `type` of a 0-9-1 message whose body is an AMQP 1.0 section."""

DESCRIPTION = "statusDescription"
DESCRIPTION_BYTES_MAX = 255
"""What is longer is no text in the other protocol (docs/reference/mapping.md): the body has the whole of it."""

LOG = logging.getLogger("weft.management")
_STATUS = {403: 403, 404: 404, 405: 405, 409: 409, 501: 501, 541: 503}
_WORDS: dict[type, str] = {str: "text", list: "list", dict: "map"}
_Kind = TypeVar("_Kind", str, list[Any], dict[str, Any])
_OK, _MADE, _GONE, _BAD, _FAILED, _LATER = 200, 201, 204, 400, 500, 503


def status_of(error: Exception) -> int:
    """The status that tells of a refusal."""
    if isinstance(error, Unavailable):
        return _LATER
    return _STATUS.get(error.code, _BAD) if isinstance(error, Refused) else _BAD


def shortened(text: str) -> str:
    """A text that fits a header."""
    return text.encode()[:DESCRIPTION_BYTES_MAX].decode(errors="ignore")


class Endpoint:
    """Answers requests in every virtual host until it is closed."""

    def __init__(self, manager: Manager, peers: Peers) -> None:
        self._manager = manager
        self._host = manager.host
        self._peers = peers
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._operations: dict[str, Callable[[Caller, Values, Any], Awaitable[tuple[int, Values]]]] = {
            "QUERY": self._query,
            "READ": self._read,
            "CREATE": self._create,
            "UPDATE": self._update,
            "DELETE": self._delete,
            "GET-TYPES": self._types,
            "GET-ATTRIBUTES": self._attributes,
            "GET-OPERATIONS": self._known_operations,
            "GET-SCHEMA": self._schema,
        }

    def serve(self) -> None:
        """Answer in every virtual host there is now; those that are gone end by themselves."""
        for vhost in self._host.policy.vhosts():
            if vhost not in self._tasks:
                self._host.apply([DeclareQueue(vhost, ADDRESS, owner=NODE_CONN)])
                receiver = self._host.driver.local.subscribe(vhost, ADDRESS, REQUESTS_MAX)
                task = asyncio.get_running_loop().create_task(self._serve(vhost, receiver))
                self._tasks[vhost] = task
                task.add_done_callback(lambda _, vhost=vhost: self._tasks.pop(vhost, None))  # type: ignore[misc]

    async def close(self) -> None:
        """Answer nothing more."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, vhost: str, receiver: Receiver) -> None:
        async with receiver:
            async for message in receiver:
                await self._handle(vhost, message)
                message.accept()

    async def _handle(self, vhost: str, message: Message) -> None:
        user = self._host.policy.user_of(message.publisher)
        address = message.properties.get("reply_to")
        if user is None or not address:
            return  # whoever asked is gone, or does not want to know
        caller = self._manager.caller(user, vhost)
        try:
            status, body = await self._answer(caller, message)
            text = "OK"
        except (Refused, ConfigError, LocalProtocolError, Unavailable) as error:
            status, text, body = status_of(error), str(error), {}
        except Exception:
            LOG.exception("a management request failed")
            status, text, body = _FAILED, "the node failed on this request; its log says why", {}
        await self._reply(caller, message, address, (status, text, body))

    async def _answer(self, caller: Caller, message: Message) -> tuple[int, Values]:
        caller.require("management")
        asked: Values = message.properties.get("headers") or {}
        body = _body(message)
        operation = asked.get("operation")
        if not isinstance(operation, str):
            raise Refused("the application property 'operation' is missing", 400)
        handle = self._operations.get(operation.upper())
        if handle is not None:
            return await handle(caller, asked, body)
        class_name, vhost, name = self._named(caller, asked)
        return _OK, await self._manager.call(caller, class_name, vhost, name, operation, _map(body))

    # operations of the pattern

    async def _query(self, caller: Caller, asked: Values, body: Any) -> tuple[int, Values]:
        class_name = asked.get("entityType") or asked.get("type")
        if class_name in (None, SELF_TYPE):
            raise Refused(f"say which class in 'entityType': one of {', '.join(BY_NAME)}", 400)
        options = _map(body)
        names = tuple(map(str, _as(list, options, "attributeNames")))
        count, pattern = asked.get("count"), _as(str, options, "pattern")
        query = Query(
            vhost=asked.get("vhost"),
            contains=_as(str, options, "contains"),
            pattern=self._host.policy.pattern(pattern) if pattern else None,
            where=_as(dict, options, "where"),
            sort=_as(str, options, "sort") or None,
            descending=bool(options.get("descending")),
            offset=max(_integer(asked.get("offset") or 0), 0),
            count=COUNT_MAX if count is None else min(max(_integer(count), 0), COUNT_MAX),
        )
        page = await self._manager.query(caller, str(class_name), query)
        names = names or tuple(dict.fromkeys(name for row in page.rows for name in row))
        results = await each(page.rows, lambda row: [row.get(name) for name in names])
        return _OK, {"attributeNames": list(names), "results": results, "count": page.matched, "total": page.total}

    async def _read(self, caller: Caller, asked: Values, body: Any) -> tuple[int, Values]:  # noqa: ARG002
        class_name, vhost, name = self._named(caller, asked)
        row = await self._manager.read(caller, class_name, vhost, name)
        return _OK, row | {"type": class_name, "identity": _identity(class_name, vhost, name)} | _kept_type(row)

    async def _create(self, caller: Caller, asked: Values, body: Any) -> tuple[int, Values]:
        class_name, vhost, name = self._named(caller, asked, must_name=False)
        values = _map(body)
        name = await self._manager.create(caller, class_name, vhost, name or str(values.get("name") or ""), values)
        row = await self._manager.read(caller, class_name, vhost, name)
        return _MADE, row | {"identity": _identity(class_name, vhost, name)}

    async def _update(self, caller: Caller, asked: Values, body: Any) -> tuple[int, Values]:
        class_name, vhost, name = self._named(caller, asked)
        await self._manager.update(caller, class_name, vhost, name, _map(body))
        return _OK, await self._manager.read(caller, class_name, vhost, name)

    async def _delete(self, caller: Caller, asked: Values, body: Any) -> tuple[int, Values]:
        class_name, vhost, name = self._named(caller, asked)
        await self._manager.delete(caller, class_name, vhost, name, _map(body))
        return _GONE, {}

    async def _types(self, *_: object) -> tuple[int, Values]:
        return _OK, {name: [] for name in BY_NAME}

    async def _attributes(self, *_: object) -> tuple[int, Values]:
        return _OK, {name: list(item.attributes) for name, item in BY_NAME.items()}

    async def _known_operations(self, *_: object) -> tuple[int, Values]:
        return _OK, {name: {one.name: [] for one in item.operations} for name, item in BY_NAME.items()}

    async def _schema(self, *_: object) -> tuple[int, Values]:
        def told(fields: Any) -> Values:
            return {field.name: {"type": field.type, "doc": field.doc, "how": field.how} for field in fields}

        return _OK, {
            name: {
                "doc": item.doc,
                "scope": item.scope,
                "properties": told(item.properties),
                "statistics": told(item.statistics),
                "operations": {one.name: told(one.arguments) for one in item.operations},
                "events": {one.name: one.severity for one in item.events},
            }
            for name, item in BY_NAME.items()
        }

    # names and answers

    def _named(self, caller: Caller, asked: Values, *, must_name: bool = True) -> tuple[str, str, str]:
        """(class, virtual host, name) of the object that is asked for."""
        class_name, name, vhost = asked.get("type"), asked.get("name"), asked.get("vhost") or caller.vhost
        identity = asked.get("identity")
        if name is None and isinstance(identity, str):
            words = [unquote(word) for word in identity.split("/")]
            class_name, name = class_name or words[0], words[-1]
            vhost = words[1] if len(words) == 3 else vhost
        if class_name in (SELF_TYPE, "self"):
            class_name, name = "node", self._host.name
        if not isinstance(class_name, str) or not isinstance(vhost, str):
            raise Refused("the application property 'type' must name a class", 400)
        if name is None and class_name == "node":
            name = self._host.name
        if name is None and must_name:
            raise Refused("the application property 'name' or 'identity' must name an object", 400)
        return class_name, vhost, str(name or "")

    async def _reply(self, caller: Caller, message: Message, address: str, answer: tuple[int, str, Values]) -> None:
        status, text, body = answer
        asked = message.properties
        description = shortened(text)
        if description != text:
            body = {**body, DESCRIPTION: text}
        properties: Values = {"headers": {"statusCode": status, DESCRIPTION: description}}
        correlation = asked.get("correlation_id") or asked.get("message_id")
        if correlation:
            properties["correlation_id"] = correlation
        peer = self._peers.get(message.publisher)
        if peer is not None and peer.wire == "0-9-1" and asked.get("type") != BODY_TYPE:
            properties["content_type"] = "application/json"
            data = await json_document(body)
        else:
            properties["type"] = BODY_TYPE
            data = await amqp_document(body)
        try:
            exchange, key = self._host.topology.resolve(caller.vhost, address)
            self._check_reply(caller, exchange, key)
            self._host.engine.publish(caller.vhost, exchange, key, data, properties, answer=True)
        except (Refused, LocalProtocolError) as error:
            LOG.debug("no answer to %s: %s", address, error)
        self._host.driver.advance_soon()

    def _check_reply(self, caller: Caller, exchange: str, key: str) -> None:
        """The node must not write where the one who asked may neither write nor read."""
        policy, vhost = self._host.policy, caller.vhost
        if not exchange and policy.may(caller.user, vhost, "read", key):
            return
        caller.need("write", vhost, exchange)


def _kept_type(row: Values) -> Values:
    """A class may have a property `type` of its own, which is worth more than telling the class back."""
    return {"type": row["type"]} if "type" in row else {}


def _identity(class_name: str, vhost: str, name: str) -> str:
    words = [class_name, vhost, name] if BY_NAME[class_name].scope == "vhost" else [class_name, name]
    return "/".join(quote(word, safe="") for word in words)


def _body(message: Message) -> Any:
    """The body of a request: an AMQP map, or JSON; nothing is an empty map."""
    if not message.body:
        return {}
    try:
        if message.properties.get("type") == BODY_TYPE:
            return decode_value(message.body)
        return json_value(message.body)
    except (ValueError, RecursionError) as error:
        raise Refused(f"the body is neither an AMQP map nor JSON: {error}", 400) from None


def _map(body: Any) -> Values:
    if body in (None, "", b""):
        return {}
    if not isinstance(body, dict):
        raise Refused("the body must be a map", 400)
    return body


def _as(kind: type[_Kind], options: Values, name: str) -> _Kind:
    """One of the options of a query, empty if it was not given."""
    value = options.get(name) or kind()
    if not isinstance(value, kind):
        raise Refused(f"'{name}' must be a {_WORDS[kind]}", 400)
    return value


def _integer(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise Refused("offset and count are whole numbers", 400)
    return value
