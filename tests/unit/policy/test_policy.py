"""Entry: events in, changes out."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from weft.model.changes import (
    Accept,
    Challenge,
    Change,
    CloseConnection,
    CreateVhost,
    DeleteVhost,
    Grant,
    Refuse,
    Revoke,
    SetPrincipal,
)
from weft.model.errors import ConfigError, Refused
from weft.model.events import AccessRequested, AuthRequested, ConnectionClosed, Event, OpenRequested
from weft.policy import Policy, PolicySettings
from weft.policy import verifier as verifier_module
from weft.policy.passwords import hash_password
from weft.store import Permission, Store

CHEAP = PolicySettings(hash_cost=16)
CONN = 7
WAIT_S = 30.0


class Door:
    """A policy with a mailbox for what it answers later."""

    def __init__(self, store: Store | None = None, settings: PolicySettings = CHEAP) -> None:
        self.later: queue.Queue[Sequence[Change]] = queue.Queue()
        self.policy = Policy(store or Store(), settings, submit=self.later.put)
        self.policy.connection_opened(CONN, local=True)

    def tell(self, *events: Event) -> list[Change]:
        return self.policy.on_events(events, 0)

    def login(self, user: str, password: str, conn: int = CONN, request: int = 1) -> Sequence[Change]:
        """What a PLAIN login is answered with, now or later."""
        return self.tell(plain(user, password, conn, request)) or self.later.get(timeout=WAIT_S)

    def enter(self, user: str, password: str, vhost: str = "/", conn: int = CONN) -> list[Change]:
        assert self.login(user, password, conn) == [Accept(1)]
        return self.tell(OpenRequested(2, conn, "0-9-1", vhost, "", {}))

    def granted(self, principal: int, operation: str, name: str) -> bool:
        (grant,) = self.tell(AccessRequested(3, CONN, principal, operation, "queue", name))  # type: ignore[arg-type]
        assert isinstance(grant, Grant)
        return grant.allowed


def auth(mechanism: str, response: bytes, conn: int = CONN, request: int = 1, step: int = 0) -> AuthRequested:
    return AuthRequested(request, conn, "0-9-1", mechanism, response, step)


def plain(user: str, password: str, conn: int = CONN, request: int = 1) -> AuthRequested:
    return auth("PLAIN", f"\0{user}\0{password}".encode(), conn, request)


@pytest.fixture
def door() -> Iterator[Door]:
    door = Door()
    yield door
    door.policy.close()


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Verification waits until the returned function is called."""
    go = threading.Event()
    real = verifier_module.verify_password

    def verify(password: str | bytes, encoded: str) -> bool:
        assert go.wait(WAIT_S)
        return real(password, encoded)

    monkeypatch.setattr(verifier_module, "verify_password", verify)
    return go.set


def is_refused(changes: Sequence[Change], code: int, text: str) -> bool:
    (change,) = changes
    return isinstance(change, Refuse) and change.code == code and text in change.text


# who may enter


def test_guest_enters_from_this_machine(door: Door) -> None:
    assert door.tell(plain("guest", "guest")) == []
    assert door.later.get(timeout=WAIT_S) == [Accept(1)]


def test_a_second_login_is_answered_at_once(door: Door) -> None:
    door.login("guest", "guest")
    assert door.tell(plain("guest", "guest", request=5)) == [Accept(5)]
    assert door.tell(plain("guest", "wrong", request=6)) == []
    assert is_refused(door.later.get(timeout=WAIT_S), 403, "ACCESS_REFUSED")


@pytest.mark.parametrize(("user", "password"), [("guest", "wrong"), ("guest", ""), ("nobody", "guest")])
def test_wrong_names_and_passwords_are_refused_alike(door: Door, user: str, password: str) -> None:
    assert door.tell(plain(user, password)) == []
    expected = Refuse(1, 403, "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN")
    assert door.later.get(timeout=WAIT_S) == [expected]


def test_guest_may_not_come_from_elsewhere(door: Door) -> None:
    door.policy.connection_opened(8, local=False)
    assert is_refused(door.login("guest", "guest", 8), 403, "own machine only")
    assert is_refused(door.login("guest", "guest", conn=99), 403, "own machine only")


def test_others_may_come_from_anywhere(door: Door) -> None:
    door.policy.add_user("ada", "pw")
    door.policy.connection_opened(8, local=False)
    assert door.login("ada", "pw", 8) == [Accept(1)]


def test_amqplain(door: Door) -> None:
    response = b"\x05LOGINS\x00\x00\x00\x05guest\x08PASSWORDS\x00\x00\x00\x05guest"
    assert door.tell(auth("AMQPLAIN", response)) == []
    assert door.later.get(timeout=WAIT_S) == [Accept(1)]
    assert is_refused(door.tell(auth("AMQPLAIN", response[:-1])), 403, "AMQPLAIN")


def test_a_missing_first_response_is_asked_for_once(door: Door) -> None:
    assert door.tell(auth("PLAIN", b"")) == [Challenge(1, b"")]
    assert is_refused(door.tell(auth("PLAIN", b"", request=2, step=1)), 403, "PLAIN")


def test_anonymous_is_guest_on_this_machine(door: Door) -> None:
    assert door.tell(auth("ANONYMOUS", b"whoever")) == [Accept(1)]
    assert SetPrincipal(1, "guest", "/") in door.tell(OpenRequested(2, CONN, "1.0", "", "c", {}))
    door.policy.connection_opened(8, local=False)
    assert is_refused(door.tell(auth("ANONYMOUS", b"", 8)), 403, "ANONYMOUS")


def test_anonymous_can_be_turned_off() -> None:
    door = Door(settings=PolicySettings(hash_cost=16, anonymous=False))
    assert is_refused(door.tell(auth("ANONYMOUS", b"")), 403, "ANONYMOUS")
    assert is_refused(door.tell(OpenRequested(2, CONN, "1.0", "", "c", {})), 530, "NOT_ALLOWED")


def test_external_is_the_name_in_the_certificate(door: Door) -> None:
    door.policy.add_user("ada")
    door.policy.connection_opened(8, local=False, tls=True, peer_identity="ada")
    door.policy.connection_opened(9, local=False, tls=True, peer_identity="eve")
    assert door.tell(auth("EXTERNAL", b"", 8)) == [Accept(1)]
    assert is_refused(door.tell(auth("EXTERNAL", b"ada", 9)), 403, "EXTERNAL")
    assert is_refused(door.tell(auth("EXTERNAL", b"ada")), 403, "EXTERNAL")


def test_a_user_without_password_has_none_that_fits(door: Door) -> None:
    door.policy.add_user("ada")
    assert is_refused(door.login("ada", ""), 403, "ACCESS_REFUSED")


def test_other_mechanisms_are_refused(door: Door) -> None:
    assert is_refused(door.tell(auth("SCRAM-SHA-1", b"n,,n=x,r=y")), 403, "SCRAM-SHA-1 is not supported")


def test_equal_questions_share_one_hash(door: Door, slow: Callable[[], None]) -> None:
    for conn in range(20, 70):
        door.policy.connection_opened(conn, local=True)
        assert door.tell(plain("guest", "guest", conn, request=conn)) == []
    slow()
    answers = [door.later.get(timeout=WAIT_S) for _ in range(50)]
    assert sorted(answer[0].request for answer in answers if isinstance(answer[0], Accept)) == list(range(20, 70))


def test_a_flood_of_logins_is_bounded(slow: Callable[[], None]) -> None:
    door = Door(settings=PolicySettings(hash_cost=16, waiting_max=3))
    for guess in range(3):
        assert door.tell(plain("guest", str(guess))) == []
    assert is_refused(door.tell(plain("guest", "more")), 403, "too many logins")
    slow()
    for _ in range(3):
        assert is_refused(door.later.get(timeout=WAIT_S), 403, "Login was refused")
    assert door.login("guest", "guest") == [Accept(1)]
    door.policy.close()


def test_the_memory_of_passwords_is_bounded() -> None:
    door = Door(settings=PolicySettings(hash_cost=16, remembered_max=2))
    for name in "abc":
        door.policy.add_user(name, "pw")
        door.login(name, "pw")
    assert door.tell(plain("c", "pw"), plain("b", "pw")) == [Accept(1), Accept(1)]
    assert door.tell(plain("a", "pw")) == []
    door.policy.close()


# virtual hosts and principals


def test_a_principal_is_a_user_in_a_virtual_host(door: Door) -> None:
    door.policy.add_vhost("other")
    door.policy.set_permission("guest", "other")
    assert door.enter("guest", "guest") == [SetPrincipal(1, "guest", "/"), Accept(2, principal=1)]
    assert door.enter("guest", "guest", "other") == [SetPrincipal(2, "guest", "other"), Accept(2, principal=2)]
    assert door.enter("guest", "guest") == [Accept(2, principal=1)]
    assert door.policy.identity(2) == ("guest", "other")


def test_missing_virtual_host(door: Door) -> None:
    assert is_refused(door.enter("guest", "guest", "nope"), 530, "NOT_ALLOWED - vhost nope not found")
    assert is_refused(door.enter("guest", "guest", ""), 530, "NOT_ALLOWED - vhost  not found")


def test_no_permission_no_entry(door: Door) -> None:
    door.policy.add_user("ada", "pw")
    text = "NOT_ALLOWED - access to vhost '/' refused for user 'ada'"
    assert door.enter("ada", "pw") == [Refuse(2, 530, text)]
    door.policy.set_permission("ada", "/")
    assert door.enter("ada", "pw") == [SetPrincipal(1, "ada", "/"), Accept(2, principal=1)]


def test_amqp_1_0_without_sasl_and_without_a_virtual_host(door: Door) -> None:
    opened = door.tell(OpenRequested(2, CONN, "1.0", "", "c", {}))
    assert opened == [SetPrincipal(1, "guest", "/"), Accept(2, principal=1)]
    door.policy.connection_opened(8, local=False)
    assert is_refused(door.tell(OpenRequested(2, 8, "1.0", "", "c", {})), 530, "NOT_ALLOWED")


def test_impersonators_are_marked(door: Door) -> None:
    door.policy.add_user("ada", "pw", tags=["impersonator"])
    door.policy.set_permission("ada", "/")
    assert door.enter("ada", "pw")[0] == SetPrincipal(1, "ada", "/", impersonate=True)
    assert door.policy.set_tags("ada", ["impersonator", "monitoring"]) == []
    assert door.policy.set_tags("ada", []) == [SetPrincipal(1, "ada", "/", impersonate=False)]


def test_a_closed_connection_is_forgotten(door: Door) -> None:
    door.enter("guest", "guest")
    assert door.tell(ConnectionClosed(CONN, 1, "bye")) == []
    assert is_refused(door.tell(OpenRequested(2, CONN, "0-9-1", "/", "", {})), 530, "NOT_ALLOWED")


# permissions


@pytest.fixture
def ada(door: Door) -> int:
    """The principal of a user with narrow permissions."""
    door.policy.add_user("ada", "pw")
    door.policy.set_permission("ada", "/", configure="^ada\\.", write="^(ada\\.|amq\\.default$)", read="")
    door.enter("ada", "pw")
    return 1


def test_patterns_decide(door: Door, ada: int) -> None:
    assert door.granted(ada, "configure", "ada.jobs")
    assert not door.granted(ada, "configure", "bob.jobs")
    assert door.granted(ada, "write", "")
    assert not door.granted(ada, "read", "ada.jobs")
    assert door.granted(ada, "read", "") is False
    assert door.policy.allowed(ada, "write", "ada.x")


def test_a_refusal_says_what_was_refused(door: Door, ada: int) -> None:
    text = "ACCESS_REFUSED - write access to exchange 'amq.topic' in vhost '/' refused for user 'ada'"
    asked = AccessRequested(9, CONN, ada, "write", "exchange", "amq.topic")
    assert door.tell(asked) == [Grant(ada, "write", "exchange", "amq.topic", allowed=False, text=text)]


def test_an_unknown_principal_may_nothing(door: Door) -> None:
    assert not door.granted(99, "read", "x")
    assert not door.policy.allowed(99, "read", "x")


def test_changed_permissions_are_asked_for_again(door: Door, ada: int) -> None:
    assert door.policy.set_permission("ada", "/", read=".*") == [Revoke(ada)]
    assert door.granted(ada, "read", "x")
    assert not door.granted(ada, "configure", "ada.jobs")
    assert door.policy.clear_permission("ada", "/") == [Revoke(ada)]
    assert not door.granted(ada, "read", "x")
    assert is_refused(door.enter("ada", "pw"), 530, "refused for user")


def test_wrong_patterns_change_nothing(door: Door, ada: int) -> None:
    with pytest.raises(ConfigError):
        door.policy.set_permission("ada", "/", read="(", configure=".*")
    assert not door.granted(ada, "configure", "bob.jobs")
    assert door.granted(ada, "configure", "ada.jobs")


def test_permissions_need_user_and_virtual_host(door: Door) -> None:
    with pytest.raises(Refused, match="no user 'eve'"):
        door.policy.set_permission("eve", "/")
    with pytest.raises(Refused, match="no virtual host 'nope'"):
        door.policy.set_permission("guest", "nope")


# change at run time


def test_a_deleted_user_is_out(door: Door, ada: int) -> None:
    text = "CONNECTION_FORCED - user 'ada' was deleted"
    assert door.policy.delete_user("ada") == [Revoke(ada), CloseConnection(CONN, 320, text)]
    assert is_refused(door.login("ada", "pw"), 403, "ACCESS_REFUSED")
    with pytest.raises(Refused, match="gone"):
        door.policy.identity(ada)
    with pytest.raises(Refused, match="no user"):
        door.policy.delete_user("ada")


def test_a_user_made_again_is_another_principal(door: Door, ada: int) -> None:
    door.policy.delete_user("ada")
    door.policy.add_user("ada", "new")
    door.policy.set_permission("ada", "/")
    assert door.enter("ada", "new") == [SetPrincipal(2, "ada", "/"), Accept(2, principal=2)]
    assert not door.granted(2, "configure", "ada.jobs")


def test_a_changed_password_holds_at_once(door: Door, ada: int) -> None:
    assert door.policy.change_password("ada", "new") == []
    assert is_refused(door.login("ada", "pw"), 403, "ACCESS_REFUSED")
    assert door.login("ada", "new") == [Accept(1)]
    door.policy.change_password("ada", password_hash=hash_password("newer", 16))
    assert door.login("ada", "newer") == [Accept(1)]


def test_a_password_changed_while_it_is_verified_does_not_let_in(door: Door, slow: Callable[[], None]) -> None:
    door.policy.add_user("ada", "pw")
    assert door.tell(plain("ada", "pw")) == []
    door.policy.change_password("ada", "new")
    slow()
    assert is_refused(door.later.get(timeout=WAIT_S), 403, "ACCESS_REFUSED")


def test_virtual_hosts_come_and_go(door: Door) -> None:
    assert door.policy.add_vhost("v") == [CreateVhost("v")]
    assert door.policy.add_vhost("v") == []
    door.policy.set_permission("guest", "v")
    door.enter("guest", "guest", "v")
    assert door.policy.delete_vhost("v") == [Revoke(1), DeleteVhost("v")]
    assert door.policy.vhosts() == ["/"]
    assert [permission.vhost for permission in door.policy.permissions()] == ["/"]
    with pytest.raises(Refused, match="default"):
        door.policy.delete_vhost("/")
    with pytest.raises(Refused, match="no virtual host"):
        door.policy.delete_vhost("v")


@pytest.mark.parametrize("name", ["", "a" * 256, "a\0b"])
def test_names_have_bounds(door: Door, name: str) -> None:
    with pytest.raises(ConfigError, match="name of a user"):
        door.policy.add_user(name, "pw")
    with pytest.raises(ConfigError, match="name of a virtual host"):
        door.policy.add_vhost(name)


def test_a_wrong_hash_is_not_stored(door: Door) -> None:
    with pytest.raises(ConfigError, match="password hash"):
        door.policy.add_user("ada", password_hash="secret")
    assert [user.name for user in door.policy.users()] == ["guest"]


# restart


def test_everything_survives_a_restart(tmp_path: Path) -> None:
    store = Store(tmp_path / "definitions.db")
    door = Door(store)
    door.policy.add_user("ada", "pw", tags=["monitoring"])
    door.policy.add_vhost("v")
    door.policy.set_permission("ada", "v", read="x")
    door.policy.delete_user("guest")
    store.close()
    door = Door(Store(tmp_path / "definitions.db"))
    assert [(user.name, user.tags) for user in door.policy.users()] == [("ada", ("monitoring",))]
    assert door.policy.vhosts() == ["/", "v"]
    assert door.policy.permissions() == [Permission("ada", "v", "", "", "x")]
    assert door.enter("ada", "pw", "v") == [SetPrincipal(1, "ada", "v"), Accept(2, principal=1)]
    door.policy.close()


def test_guest_can_be_turned_off(tmp_path: Path) -> None:
    no_guest = PolicySettings(hash_cost=16, guest=False)
    assert Door(settings=no_guest).policy.users() == []
    store = Store(tmp_path / "definitions.db")
    assert [user.name for user in Door(store).policy.users()] == ["guest"]
    assert Door(store, no_guest).policy.users() == []
    door = Door(store)
    door.policy.add_user("guest", "changed")
    assert [user.name for user in Door(store, no_guest).policy.users()] == ["guest"]
    store.close()
