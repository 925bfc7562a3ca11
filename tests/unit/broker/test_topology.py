"""What outlives the node, what the node does for itself, and what happens when the disk does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from unit.broker.desk import Desk, bind, delete_exchange, delete_queue, exchange, queue, unbind
from weft.broker import Topology
from weft.model.changes import (
    Bind,
    CreateVhost,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    DeleteVhost,
    Refuse,
    SetAddress,
    Unbind,
)
from weft.model.errors import Corrupt, Refused
from weft.model.events import ConnectionClosed, MemoryAlarm, QueueUnused, Terminus, TopologyRequested
from weft.policy import Policy, PolicySettings
from weft.store import Binding, Queue, Store


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "definitions.db"


def reopen(desk: Desk, path: Path) -> Desk:
    desk.store.close()
    return Desk(path)


def test_durable_things_are_there_after_a_restart(path: Path) -> None:
    desk = Desk(path)
    desk.ask(exchange("x", "topic", durable=True, alternate_exchange="amq.fanout"))
    desk.ask(exchange("later", "x-delayed-message", durable=True, x_delayed_type="direct"))
    desk.ask(queue("q", durable=True, x_message_ttl=5, x_anything=[b"\x00", None]))
    desk.ask(queue("auto", durable=True, auto_delete=True))
    desk.ask(bind("x", "q", "a.#", n=1))
    desk.ask(bind("amq.topic", "q", "k"))
    desk.ask(bind("x", "later", "e", "exchange"))
    before = desk.kernel
    after = reopen(desk, path).kernel
    assert after.exchanges == before.exchanges
    assert after.queues == before.queues
    assert after.bindings == before.bindings


def test_transient_things_are_not(path: Path) -> None:
    desk = Desk(path)
    desk.ask(exchange("x", "topic"))
    desk.ask(queue("q"))
    desk.ask(queue("mine", durable=True, exclusive=True))
    desk.ask(queue("lasting", durable=True))
    desk.ask(exchange("kept", durable=True))
    desk.ask(bind("x", "lasting"))
    desk.ask(bind("kept", "q"))
    desk = reopen(desk, path)
    assert desk.kernel.queue_names() == {"lasting"}
    assert desk.kernel.bound() == set()
    assert ("/", "x") not in desk.kernel.exchanges


def test_what_was_deleted_stays_deleted(path: Path) -> None:
    desk = Desk(path)
    for name in ("q1", "q2", "q3"):
        desk.ask(queue(name, durable=True))
        desk.ask(bind("amq.topic", name, "k"))
    desk.ask(exchange("x", durable=True))
    desk.ask(exchange("auto", durable=True, auto_delete=True))
    desk.ask(bind("auto", "q3"))
    desk.ask(delete_queue("q1"))
    desk.ask(unbind("amq.topic", "q2", "k"))
    desk.ask(delete_exchange("x"))
    desk.tell(QueueUnused("/", "q3", "expired"))
    desk = reopen(desk, path)
    assert desk.kernel.queue_names() == {"q2"}
    assert desk.kernel.bound() == set()
    assert {name for _, name in desk.kernel.exchanges if not name.startswith("amq.")} == set()


def test_a_redeclared_queue_keeps_its_arguments_comparable(path: Path) -> None:
    desk = Desk(path)
    desk.ask(queue("q", durable=True, x_message_ttl=5))
    desk = reopen(desk, path)
    desk.succeed(queue("q", durable=True, x_message_ttl=5))
    assert desk.fail(queue("q", durable=True, x_message_ttl=6))[0] == 406


def test_a_full_disk_refuses_and_changes_nothing(path: Path) -> None:
    desk = Desk(path)
    desk.ask(queue("kept", durable=True, auto_delete=True))
    desk.store._database.execute("PRAGMA query_only = ON")
    code, text = desk.fail(queue("q", durable=True))
    assert code == 541
    assert text.startswith("INTERNAL_ERROR - cannot save definitions")
    assert desk.fail_attach(Terminus("new"), sends=True)[0] == 541
    row = desk.send_to("new")
    assert (row.exchange, row.code) == (None, 541)
    assert desk.tell(QueueUnused("/", "kept", "auto-delete")) == []
    assert desk.kernel.queue_names() == {"kept"}
    desk.succeed(queue("transient"))
    desk.store._database.execute("PRAGMA query_only = OFF")
    desk.succeed(queue("q", durable=True))
    assert desk.tell(QueueUnused("/", "kept", "auto-delete")) == [DeleteQueue("/", "kept")]
    assert desk.send_to("new") == SetAddress(1, "new", "", "new")


def test_a_turn_is_synced_once_before_it_is_answered(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(path)
    synced: list[int] = []
    monkeypatch.setattr("os.fsync", synced.append)
    requests = [TopologyRequested(n, 7, 1, queue(f"q{n}", durable=True)) for n in range(9)]
    desk.tell(*requests)
    assert len(synced) == 1
    desk.ask(queue("transient"))
    assert len(synced) == 1
    desk.topology.declare_queue("/", "own", durable=True)
    assert len(synced) == 2


def test_a_failing_disk_takes_promises_back(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_file: int) -> None:
        raise OSError(5, "Input/output error")

    desk = Desk(path)
    monkeypatch.setattr("os.fsync", fail)
    declared, refused = desk.ask(queue("q", durable=True))
    assert declared == DeclareQueue("/", "q", durable=True)
    assert refused == Refuse(5, 541, "INTERNAL_ERROR - cannot save definitions: Input/output error")


@pytest.mark.parametrize("missing", [Binding("/", "no", "queue", "q"), Binding("/", "amq.topic", "queue", "no")])
def test_stored_definitions_must_fit_together(missing: Binding) -> None:
    store = Store()
    with store.transaction():
        store.put_queue(Queue("/", "q", durable=True))
        store.put_binding(missing)
    policy = Policy(store, PolicySettings(hash_cost=16), submit=lambda _: None)
    with pytest.raises(Corrupt, match="'no'"):
        Topology(store, policy, lambda _vhost, _queue: None)


def test_events_of_others_are_left_alone(desk: Desk) -> None:
    assert desk.tell(MemoryAlarm(True, 1, 1)) == []


# the node's own


def test_embedded_use(desk: Desk) -> None:
    topology = desk.topology
    desk.access.refused = {
        (operation, kind, "*") for operation in ("configure", "read", "write") for kind in ("queue", "exchange")
    }
    assert topology.declare_queue("/", "q", durable=True, arguments={"x-max-length": 1}) == [
        DeclareQueue("/", "q", durable=True, length_max=1)
    ]
    assert topology.declare_queue("/", "q", durable=True, arguments={"x-max-length": 1}) == []
    assert topology.declare_exchange("/", "x", "topic") == [DeclareExchange("/", "x", "topic")]
    assert topology.bind("/", "x", "q", "k") == [Bind("/", "x", "queue", "q", "k")]
    assert topology.unbind("/", "x", "q", "k") == [Unbind("/", "x", "queue", "q", "k")]
    assert topology.delete_queue("/", "q") == [DeleteQueue("/", "q")]
    assert topology.delete_exchange("/", "x") == [DeleteExchange("/", "x")]
    (made,) = topology.declare_queue("/")
    assert isinstance(made, DeclareQueue)
    assert made.name.startswith("amq.gen-")
    assert [found.name for found in topology.queues("/")] == [made.name]


def test_embedded_use_follows_the_same_rules(desk: Desk) -> None:
    desk.topology.declare_queue("/", "q")
    with pytest.raises(Refused, match="inequivalent arg 'durable'") as refused:
        desk.topology.declare_queue("/", "q", durable=True)
    assert refused.value.code == 406
    with pytest.raises(Refused, match="no virtual host 'v'"):
        desk.topology.declare_queue("v", "q")
    desk.ask(queue("mine", exclusive=True))
    with pytest.raises(Refused, match="RESOURCE_LOCKED"):
        desk.topology.delete_queue("/", "mine")


def test_virtual_hosts(desk: Desk) -> None:
    changes = desk.topology.add_vhost("v")
    desk.kernel.apply(changes)
    assert changes[0] == CreateVhost("v")
    assert {name for vhost, name in desk.kernel.exchanges if vhost == "v"} == {
        "amq.direct",
        "amq.fanout",
        "amq.topic",
        "amq.headers",
        "amq.match",
    }
    assert desk.topology.add_vhost("v") == []
    desk.topology.declare_queue("v", "q")
    assert desk.topology.delete_vhost("v") == [DeleteVhost("v")]
    assert desk.tell(QueueUnused("v", "q", "expired")) == []
    with pytest.raises(Refused, match="no virtual host"):
        desk.topology.queues("v")
    with pytest.raises(Refused):
        desk.topology.delete_vhost("v")


def test_policy_and_topology_share_a_store(path: Path) -> None:
    store = Store(path)
    policy = Policy(store, PolicySettings(hash_cost=16), submit=lambda _: None)
    topology = Topology(store, policy, lambda _vhost, _queue: None)
    topology.add_vhost("v")
    topology.declare_queue("v", "q", durable=True)
    topology.declare_queue("/", "q", durable=True)
    store.close()
    store = Store(path)
    policy = Policy(store, PolicySettings(hash_cost=16), submit=lambda _: None)
    topology = Topology(store, policy, lambda _vhost, _queue: None)
    started = topology.start()
    assert [change for change in started if isinstance(change, CreateVhost | DeclareQueue)] == [
        CreateVhost("/"),
        DeclareQueue("/", "q", durable=True),
        CreateVhost("v"),
        DeclareQueue("v", "q", durable=True),
    ]
    topology.delete_vhost("v")
    assert store.queues() == [Queue("/", "q", durable=True)]
    store.close()


def test_connections_of_a_deleted_virtual_host_leave_nothing_to_do(desk: Desk) -> None:
    desk.ask(queue("mine", exclusive=True))
    desk.topology.delete_vhost("/")
    assert desk.tell(ConnectionClosed(7, 1, "bye")) == []


def test_taps_are_set_cleared_and_remembered(path: Path) -> None:
    desk = Desk(path)
    desk.ask(queue("log", durable=True, x_queue_type="stream"))
    desk.ask(exchange("x", "topic", durable=True))
    desk.ask(queue("q", durable=True))
    (row,) = desk.topology.tap("/", "x", "log")
    assert row == DeclareExchange("/", "x", "topic", tap="log")
    assert desk.topology.tap("/", "q", "log", kind="queue") == [DeclareQueue("/", "q", durable=True, tap="log")]
    desk.topology.tap("/", "amq.fanout", "log")
    for wrong, code in (("q", 406), ("nothing", 404)):
        with pytest.raises(Refused) as refused:
            desk.topology.tap("/", "amq.topic", wrong)
        assert refused.value.code == code
    after = reopen(desk, path)
    rows = [*after.kernel.exchanges.values(), *after.kernel.queues.values()]
    assert {row.name for row in rows if row.tap} == {"x", "q", "amq.fanout"}
    assert after.topology.tap("/", "x", None) == [DeclareExchange("/", "x", "topic")]
