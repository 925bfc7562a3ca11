"""May this binding be made, or undone? The rules.

Owns the decisions on queue.bind, queue.unbind, exchange.bind and exchange.unbind.
A request, the tables and the caller come in; an outcome or a refusal goes out, and nothing changes on the way.
It must not know events or the store.
Rules: whoever binds needs read on the source, and on the key of a topic exchange, and write on the destination; undoing
what is not there succeeds (RabbitMQ).
"""

from __future__ import annotations

from weft.broker.access import Caller
from weft.broker.arguments import matching_type, type_name
from weft.broker.exchanges import refuse_default
from weft.broker.outcome import Outcome
from weft.broker.queues import check_exclusive
from weft.broker.tables import Tables
from weft.model.errors import Refused
from weft.model.events import BindingChange, Table
from weft.model.names import clean_name
from weft.store import Binding, Exchange, Queue

HEADER_MATCHES = ("all", "any", "all-with-x", "any-with-x")


def change_binding(tables: Tables, caller: Caller, request: BindingChange) -> Outcome:
    """queue.bind, queue.unbind, exchange.bind or exchange.unbind."""
    names = clean_name(request.source), clean_name(request.destination)
    binding = Binding(tables.vhost, names[0], request.kind, names[1], request.routing_key, request.arguments)
    caller.require("write", binding.kind, binding.destination)
    refuse_default(binding.source)
    if binding.kind == "exchange":
        refuse_default(binding.destination)
    caller.require("read", "exchange", binding.source)
    require_topic(tables, caller, binding)
    return _bind(tables, caller, binding) if request.action == "bind" else _unbind(tables, caller, binding)


def require_topic(tables: Tables, caller: Caller, binding: Binding) -> None:
    """Refused unless the caller may take what its source routes by this key, if it is a topic exchange."""
    source = tables.exchanges.get(binding.source)
    if source is not None and matching_type(source) == "topic":
        caller.require_topic(binding.source, binding.routing_key)


def check_header_match(exchange: Exchange, arguments: Table) -> None:
    """A headers exchange must know how to match."""
    if "x-match" not in arguments or matching_type(exchange) != "headers":
        return
    match = arguments["x-match"]
    if not isinstance(match, str):
        text = f"PRECONDITION_FAILED - invalid x-match field type {type_name(match)}; expected longstr"
        raise Refused(text, 406)
    if match not in HEADER_MATCHES:
        text = f"PRECONDITION_FAILED - invalid x-match field value '{match}'; expected {', '.join(HEADER_MATCHES)}"
        raise Refused(text, 406)


def _bind(tables: Tables, caller: Caller, binding: Binding) -> Outcome:
    source = tables.exchange(binding.source)
    destination = _destination(tables, caller, binding)
    check_header_match(source, binding.arguments)
    return Outcome() if binding in tables.bindings else Outcome([tables.put_binding(binding, destination)])


def _unbind(tables: Tables, caller: Caller, binding: Binding) -> Outcome:
    existing = tables.bindings.get(binding)
    if existing is None:
        return Outcome()
    _destination(tables, caller, existing)
    return Outcome(tables.drop_bindings([existing]))


def _destination(tables: Tables, caller: Caller, binding: Binding) -> Exchange | Queue:
    if binding.kind == "exchange":
        return tables.exchange(binding.destination)
    queue = tables.queue(binding.destination)
    check_exclusive(queue, caller.conn)
    return queue
