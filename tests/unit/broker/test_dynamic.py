"""Dynamic nodes and their four lifetimes."""

from __future__ import annotations

import pytest

from unit.broker.desk import CONN, OTHER_CONN, Desk
from weft.model.changes import AcceptLink, DeclareQueue, DeleteQueue
from weft.model.events import AttachRequested, ConnectionClosed, LinkClosed, QueueUnused, Terminus


def make(desk: Desk, lifetime: str = "", *, sends: bool = False, capabilities: tuple[str, ...] = ()) -> str:
    """The name of a dynamic node made by link `maker`."""
    terminus = Terminus(None, dynamic=True, lifetime=lifetime, capabilities=capabilities)
    link = desk.attach(terminus, sends=sends, link="maker")
    assert link.queue == link.address
    return link.queue or ""


def end(name: str, link: str = "maker", conn: int = CONN) -> LinkClosed:
    return LinkClosed(conn, "/", name, link, closed=True)


def test_a_reply_queue(desk: Desk) -> None:
    terminus = Terminus(None, dynamic=True, capabilities=("temporary-queue",))
    declared, link = desk.tell(AttachRequested(6, CONN, 1, "maker", False, terminus))
    assert isinstance(link, AcceptLink)
    assert isinstance(declared, DeclareQueue)
    name = link.queue or ""
    assert name.startswith("amq.gen-")
    assert declared == DeclareQueue("/", name, owner=CONN)
    assert link == AcceptLink(6, name, queue=name, capabilities=("temporary-queue",), watch=True)
    assert desk.attach(Terminus(name), sends=True, conn=OTHER_CONN).queue == name
    assert desk.fail_attach(Terminus(name), sends=False, conn=OTHER_CONN)[0] == 405
    assert desk.send_to(name).routing_key == name


@pytest.mark.parametrize("sends", [True, False])
def test_it_ends_with_the_link_that_made_it(desk: Desk, sends: bool) -> None:
    name = make(desk, sends=sends)
    assert desk.tell(end(name)) == [DeleteQueue("/", name)]
    name = make(desk, "delete-on-close", sends=sends)
    assert desk.tell(ConnectionClosed(CONN, 1, "bye")) == [DeleteQueue("/", name)]
    assert desk.tell(end(name)) == []


def test_a_dynamic_target_can_be_read_by_others(desk: Desk) -> None:
    name = make(desk, sends=True)
    link = desk.attach(Terminus(name), sends=False, conn=OTHER_CONN)
    assert (link.queue, link.watch) == (name, False)


def test_delete_on_no_links(desk: Desk) -> None:
    name = make(desk, "delete-on-no-links")
    assert desk.attach(Terminus(name), sends=True, link="other", conn=OTHER_CONN).watch
    assert desk.attach(Terminus(name), sends=False, link="third", conn=OTHER_CONN).watch
    assert desk.tell(end(name)) == []
    assert desk.tell(ConnectionClosed(CONN, 1, "bye")) == []
    assert desk.tell(end(name, "other", OTHER_CONN)) == []
    assert desk.tell(ConnectionClosed(OTHER_CONN, 1, "bye")) == [DeleteQueue("/", name)]


def test_delete_on_no_messages(desk: Desk) -> None:
    name = make(desk, "delete-on-no-messages")
    assert desk.kernel.queues["/", name].delete_when_empty
    assert desk.tell(end(name), ConnectionClosed(CONN, 1, "bye")) == []
    desk.stats[name] = (0, 1, 0)
    assert desk.tell(QueueUnused("/", name, "empty")) == []
    desk.stats[name] = (0, 0, 0)
    assert desk.tell(QueueUnused("/", name, "empty")) == [DeleteQueue("/", name)]


def test_delete_on_no_links_or_messages(desk: Desk) -> None:
    name = make(desk, "delete-on-no-links-or-messages")
    assert desk.kernel.queues["/", name].delete_when_empty
    assert desk.tell(QueueUnused("/", name, "empty")) == []
    desk.stats[name] = (2, 0, 0)
    assert desk.tell(end(name)) == []
    desk.stats[name] = (0, 0, 0)
    assert desk.tell(QueueUnused("/", name, "empty")) == [DeleteQueue("/", name)]
    name = make(desk, "delete-on-no-links-or-messages")
    assert desk.tell(end(name)) == [DeleteQueue("/", name)]


def test_an_unknown_lifetime_is_that_of_the_link(desk: Desk) -> None:
    name = make(desk, "delete-on-sunday")
    assert desk.tell(end(name)) == [DeleteQueue("/", name)]


def test_ordinary_queues_do_not_end_with_links(desk: Desk) -> None:
    desk.attach(Terminus("jobs"), sends=False)
    assert desk.tell(end("jobs", "l"), QueueUnused("/", "jobs", "empty")) == []


def test_a_temporary_topic_is_a_key(desk: Desk) -> None:
    terminus = Terminus(None, dynamic=True, capabilities=("temporary-topic",))
    sender = desk.attach(terminus, sends=True)
    assert sender.address == f"amq.topic/{sender.routing_key}"
    assert (sender.exchange, sender.capabilities) == ("amq.topic", ("temporary-topic",))
    receiver = desk.attach(Terminus(sender.address, capabilities=("temporary-topic",)), sends=False, link="r")
    assert desk.kernel.bound() == {("amq.topic", sender.routing_key, receiver.queue)}


def test_permissions(desk: Desk) -> None:
    for sends, refused in (
        (False, ("configure", "queue", "*")),
        (False, ("read", "queue", "*")),
        (True, ("configure", "queue", "*")),
        (True, ("write", "exchange", "")),
    ):
        desk.access.refused = {refused}
        assert desk.fail_attach(Terminus(None, dynamic=True), sends=sends)[0] == 403
    desk.access.refused = {("write", "exchange", "amq.topic")}
    assert desk.fail_attach(Terminus(None, dynamic=True, capabilities=("topic",)), sends=True)[0] == 403
