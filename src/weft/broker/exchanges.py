"""May this exchange be declared, or deleted? The rules.

Owns the decisions on exchange.declare and exchange.delete, and the protection of the default exchange.
A request, the tables and the caller come in; an outcome or a refusal goes out, and nothing changes on the way.
It must not know events or the store.
Rules: AMQP 0-9-1 section 1.6.2 as RabbitMQ applies it, order of checks included.
"""

from __future__ import annotations

from weft.broker.access import Caller
from weft.broker.arguments import (
    ALTERNATE_EXCHANGE,
    DELAYED_TYPE,
    check_exchange,
    check_exchange_type,
    require_equal,
    require_equal_arguments,
)
from weft.broker.barriers import BARRIER_ARGUMENTS
from weft.broker.names import RESERVED_PREFIX, check_new_name
from weft.broker.outcome import Outcome
from weft.broker.tables import Put, Tables
from weft.broker.taps import check_tap
from weft.model.errors import Refused
from weft.model.events import ExchangeDeclare, ExchangeDelete
from weft.model.names import clean_name
from weft.store import Exchange


def declare_exchange(tables: Tables, caller: Caller, request: ExchangeDeclare) -> Outcome:
    """exchange.declare."""
    name = clean_name(request.name)
    if request.passive:
        refuse_default(name)
        tables.exchange(name)
        return Outcome()
    check_exchange_type(request.type)
    refuse_default(name)
    caller.require("configure", "exchange", name)
    flags = request.durable, request.auto_delete, request.internal
    wanted = Exchange(tables.vhost, name, request.type, *flags, request.arguments)
    existing = tables.exchanges.get(name)
    if existing is not None:
        _check_same(existing, wanted)
        return Outcome()
    check_new_name("exchange", name)
    check_exchange(wanted)
    check_tap(tables, caller, wanted)
    alternate = wanted.arguments.get(ALTERNATE_EXCHANGE)
    if isinstance(alternate, str):
        caller.require("read", "exchange", name)
        caller.require("write", "exchange", alternate)
    return Outcome([Put(wanted, wanted.durable)])


def delete_exchange(tables: Tables, caller: Caller, request: ExchangeDelete) -> Outcome:
    """exchange.delete; an exchange that is not there is deleted already."""
    name = clean_name(request.name)
    refuse_default(name)
    if name.startswith(RESERVED_PREFIX):
        text = f"ACCESS_REFUSED - deletion of system exchange '{name}' in vhost '{tables.vhost}' not allowed"
        raise Refused(text, 403)
    caller.require("configure", "exchange", name)
    exchange = tables.exchanges.get(name)
    if exchange is None:
        return Outcome()
    if request.if_unused and tables.bindings.of_source(name):
        raise Refused(f"PRECONDITION_FAILED - {exchange} in use", 406)
    return Outcome(tables.drop_exchange(exchange))


def refuse_default(name: str) -> None:
    """The default exchange is as it is."""
    if not name:
        raise Refused("ACCESS_REFUSED - operation not permitted on the default exchange", 403)


def _check_same(existing: Exchange, wanted: Exchange) -> None:
    require_equal("type", existing, wanted.type, existing.type)
    require_equal("durable", existing, wanted.durable, existing.durable)
    require_equal("auto_delete", existing, wanted.auto_delete, existing.auto_delete)
    require_equal("internal", existing, wanted.internal, existing.internal)
    names = ALTERNATE_EXCHANGE, DELAYED_TYPE, *BARRIER_ARGUMENTS
    require_equal_arguments(existing, names, wanted.arguments, existing.arguments)
