"""Permissions on topics, and limits of users and virtual hosts, without a node."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from unit.policy.test_policy import CONN, Door, is_refused
from weft.model.changes import SetPrincipal
from weft.model.errors import ConfigError, Refused
from weft.model.events import ConnectionClosed
from weft.store import Limit, Store


@pytest.fixture
def door() -> Iterator[Door]:
    door = Door()
    yield door
    door.policy.close()


def enter(door: Door, conn: int) -> bool:
    door.policy.connection_opened(conn, local=True)
    return any(
        isinstance(change, SetPrincipal) or hasattr(change, "principal")
        for change in door.enter("guest", "guest", conn=conn)
    )


def test_patterns_go_to_the_kernel_with_the_user_in_them(door: Door) -> None:
    door.policy.add_user("a.b", "pw")
    door.policy.set_permission("a.b", "/", configure=".*", write=".*", read=".*")
    assert door.policy.set_topic_permission("a.b", "/", "news", write="^{username}\\.{vhost}", read="") == []
    assert door.enter("a.b", "pw")[0] == SetPrincipal(1, "a.b", "/", topics=(("news", "^a\\.b\\./"),))
    changed = door.policy.set_topic_permission("a.b", "/", "news", write="", read="x")
    assert changed == [SetPrincipal(1, "a.b", "/", topics=(("news", "^$"),))]
    assert door.policy.clear_topic_permission("a.b", "/") == [SetPrincipal(1, "a.b", "/")]


def test_who_binds_needs_the_key(door: Door) -> None:
    door.enter("guest", "guest")
    door.policy.set_topic_permission("guest", "/", "news", write=".*", read="^eu\\.|^{username}$")
    door.policy.check_topic(1, "news", "eu.#")
    door.policy.check_topic(1, "news", "guest")
    door.policy.check_topic(1, "other", "us")
    with pytest.raises(
        Refused, match="read access to topic 'us' in exchange 'news' in vhost '/' refused for user 'guest'"
    ):
        door.policy.check_topic(1, "news", "us")
    assert not door.policy.may_topic("guest", "/", "read", "news", "us")
    assert door.policy.may_topic("guest", "/", "write", "news", "us")


@pytest.mark.parametrize("pattern", ["(", "(a+)+b", "(?=a)", "(?<!a)b", "a*+", "(?P<name>a)"])
def test_patterns_that_cannot_be_matched_in_one_pass_are_refused(door: Door, pattern: str) -> None:
    with pytest.raises(ConfigError):
        door.policy.set_topic_permission("guest", "/", "news", write=pattern, read="")
    assert door.policy.topic_permissions() == []


def test_they_survive_and_go_with_user_and_virtual_host(tmp_path: Path) -> None:
    path = tmp_path / "definitions"
    store = Store(path)
    door = Door(store)
    door.policy.add_vhost("v")
    door.policy.add_user("ann", "pw")
    for user, vhost in (("guest", "/"), ("guest", "v"), ("ann", "/")):
        door.policy.set_topic_permission(user, vhost, "news", write="w", read="r")
    door.policy.set_limit(Limit("user", "ann", "max-connections", 1))
    door.policy.set_limit(Limit("vhost", "v", "max-queues", 1))
    door.policy.close()
    store.close()
    store = Store(path)
    door = Door(store)
    assert len(door.policy.topic_permissions()) == 3
    assert len(door.policy.limits()) == 2
    door.policy.delete_user("ann")
    door.policy.delete_vhost("v")
    assert [(one.user, one.vhost) for one in door.policy.topic_permissions()] == [("guest", "/")]
    assert door.policy.limits() == []
    assert len(store.topic_permissions()) == 1
    assert store.limits() == []
    door.policy.close()
    store.close()


def test_a_virtual_host_takes_no_more_connections_than_its_limit(door: Door) -> None:
    door.policy.set_limit(Limit("vhost", "/", "max-connections", 1))
    assert enter(door, CONN)
    door.policy.connection_opened(8, local=True)
    assert is_refused(door.enter("guest", "guest", conn=8), 530, "connection limit (1) is reached")
    door.tell(ConnectionClosed(8, 0, "refused"))
    door.tell(ConnectionClosed(CONN, 1, "gone"))
    assert enter(door, 9)
    door.policy.set_limit(Limit("vhost", "/", "max-connections", -1))
    assert enter(door, 10)


def test_a_user_has_no_more_connections_than_its_limit(door: Door) -> None:
    door.policy.set_limit(Limit("user", "guest", "max-connections", 0))
    refused = door.enter("guest", "guest")
    assert is_refused(refused, 530, "connection refused for user 'guest': user connection limit (0) is reached")
    door.policy.clear_limit("user", "guest")
    assert enter(door, 9)


def test_limits_that_nobody_knows_are_refused(door: Door) -> None:
    for wrong in (Limit("user", "guest", "max-queues", 1), Limit("vhost", "/", "max-connections", -2)):
        with pytest.raises(ConfigError):
            door.policy.set_limit(wrong)
    with pytest.raises(Refused):
        door.policy.set_limit(Limit("user", "nobody", "max-connections", 1))
    assert door.policy.queues_max("/") is None


def test_the_kernel_counts_channels(door: Door) -> None:
    door.enter("guest", "guest")
    assert door.policy.set_limit(Limit("user", "guest", "max-channels", 3)) == [
        SetPrincipal(1, "guest", "/", channels_max=3)
    ]
    assert door.policy.set_limit(Limit("user", "guest", "max-channels", 2**40)) == [
        SetPrincipal(1, "guest", "/", channels_max=2**32 - 1)
    ]
    assert door.policy.clear_limit("user", "guest") == [SetPrincipal(1, "guest", "/")]
