"""The controller of entry: who is at the door, and which grants they get.

Owns connections as far as entry goes, and the numbers (principals) under which the kernel knows a user in a virtual
host.
AuthRequested, OpenRequested and AccessRequested come in; Accept, Refuse, SetPrincipal and Grant go out, some of them
later by `submit`.
It must never see a message, and never block the loop: slow hashes run on the verifier's threads.
Rules: AMQP 0-9-1 connection class, AMQP 1.0 part 5 (SASL), RabbitMQ's access control guide; docs/decisions/0003.
"""

from __future__ import annotations

import itertools
import queue
import re
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

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
    SetMechanisms,
    SetPrincipal,
)
from weft.model.errors import Refused
from weft.model.events import AccessRequested, AuthRequested, ConnectionClosed, Event, OpenRequested
from weft.model.scram import MECHANISM as SCRAM
from weft.policy import scram
from weft.policy.mechanisms import WITH_PASSWORD, Credentials
from weft.policy.passwords import hash_password, verify_password
from weft.policy.patterns import compile_pattern
from weft.policy.permissions import Operation
from weft.policy.settings import PolicySettings
from weft.policy.users import Registry
from weft.policy.verifier import Verifier
from weft.store import Limit, Notes, Permission, Store, TopicPermission, User

GUEST = "guest"
IMPERSONATOR = "impersonator"
MECHANISMS = ("PLAIN", "AMQPLAIN", "ANONYMOUS", "EXTERNAL")
"""What peers are always offered."""
CHANNELS_MAX = 2**32 - 1
"""More than the kernel counts is no bound."""


@dataclass(slots=True)
class _Peer:
    """What is known of a connection before and after its user is."""

    local: bool = False
    tls: bool = False
    identity: str | None = None
    user: str | None = None
    vhost: str | None = None
    """Where it entered."""
    exchange: scram.Exchange | None = None
    """The login it is in the middle of."""
    proven: str | None = None
    """Who it has proven to be, but for the last empty response."""


class Policy:
    """Decides who enters and what they may touch."""

    def __init__(
        self, store: Store, settings: PolicySettings | None = None, *, submit: Callable[[Sequence[Change]], None]
    ) -> None:
        """`submit` takes answers that come later; it is called from worker threads."""
        self.settings = settings or PolicySettings()
        self._submit = submit
        self._registry = Registry(store)
        self._verifier = Verifier(
            workers=self.settings.workers,
            waiting_max=self.settings.waiting_max,
            remembered_max=self.settings.remembered_max,
            hash_cost=self.settings.hash_cost,
        )
        self._peers: dict[int, _Peer] = {}
        self._principals: dict[tuple[str, str], int] = {}
        self._identities: dict[int, tuple[str, str]] = {}
        self._numbers = itertools.count(1)
        self._decoy_key = secrets.token_bytes(32)
        self._offered = MECHANISMS
        self._learned: queue.SimpleQueue[tuple[str, str, str]] = queue.SimpleQueue()
        """Verifiers made on worker threads: the user, the hash to be replaced, the line to store."""
        self._entered: Counter[tuple[str, str]] = Counter()
        """Connections by ("user" or "vhost", name)."""
        self._prepare(is_new=store.is_new)

    def start(self) -> list[Change]:
        """What the engine must know before the first peer comes."""
        self._offer()
        return [SetMechanisms(self._offered)]

    def close(self) -> None:
        """Stop the worker threads."""
        self._verifier.close()

    # connections

    def connection_opened(self, conn: int, local: bool, tls: bool = False, peer_identity: str | None = None) -> None:
        """The node accepted a connection; `peer_identity` is the name in a verified client certificate."""
        self._peers[conn] = _Peer(local, tls, peer_identity)

    wants = frozenset({AuthRequested, OpenRequested, AccessRequested, ConnectionClosed})

    def on_events(self, events: Sequence[Event], now_ns: int) -> list[Change]:  # noqa: ARG002 - no deadlines here
        """Answer what is about entry; leave the rest to others."""
        changes = self._keep_learned()
        for event in events:
            match event:
                case AuthRequested():
                    changes += self._on_auth(event)
                case OpenRequested():
                    changes += self._on_open(event)
                case AccessRequested():
                    changes.append(self._on_access(event))
                case ConnectionClosed():
                    self._leave(self._peers.pop(event.conn, None))
        return changes

    def _on_auth(self, event: AuthRequested) -> list[Change]:
        peer = self._peers.setdefault(event.conn, _Peer())
        if event.mechanism == "ANONYMOUS":
            return self._enter(event, peer, GUEST if self._may_be_anonymous(peer) else None)
        if event.mechanism == "EXTERNAL":
            return self._enter(event, peer, peer.identity)
        if event.mechanism == SCRAM:
            return self._exchange(event, peer)
        parse = WITH_PASSWORD.get(event.mechanism)
        if parse is None:
            return [Refuse(event.request, 403, f"ACCESS_REFUSED - mechanism {event.mechanism[:32]} is not supported")]
        if not event.response and event.step == 0:
            return [Challenge(event.request, b"")]
        credentials = parse(event.response)
        return [_refuse_login(event)] if credentials is None else self._verify(event, peer, credentials)

    def _verify(self, event: AuthRequested, peer: _Peer, credentials: Credentials) -> list[Change]:
        name, password = credentials
        if name in self.settings.loopback_users and not peer.local:
            text = f"ACCESS_REFUSED - user '{name}' may enter from the node's own machine only"
            return [Refuse(event.request, 403, text)]
        user = self._registry.users.get(name)
        encoded = user.password_hash if user else None
        if self._verifier.recall(name, encoded, password):
            return self._enter(event, peer, name)

        def answer_on_worker_thread(is_right: bool) -> None:
            user = self._registry.users.get(name)
            is_current = user is not None and user.password_hash == encoded
            self._submit(self._enter(event, peer, name if is_right and is_current else None))
            if is_right and encoded and self.settings.scram and scram.parse_verifier(encoded) is None:
                self._learned.put((name, encoded, self.hash_password(password)))

        if self._verifier.ask(name, encoded, password, answer_on_worker_thread):
            return []
        return [Refuse(event.request, 403, "ACCESS_REFUSED - too many logins at once, try again later")]

    def _exchange(self, event: AuthRequested, peer: _Peer) -> list[Change]:
        """A step of SCRAM. The node's proof goes with the outcome; AMQP 0-9-1 has none: there it is a challenge."""
        exchange, proven, peer.exchange, peer.proven = peer.exchange, peer.proven, None, None
        if event.step == 0 and not event.response:
            return [Challenge(event.request, b"")]
        if proven is not None and not event.response:
            return self._enter(event, peer, proven)
        if exchange is not None:
            proof = exchange.judge(event.response)
            if proof is None:
                return [_refuse_login(event)]
            if event.wire == "1.0":
                return self._enter(event, peer, exchange.user, proof)
            peer.proven = exchange.user
            return [Challenge(event.request, proof)]
        first = scram.parse_first(event.response)
        if first is None:
            return [_refuse_login(event)]
        if first.user in self.settings.loopback_users and not peer.local:
            text = f"ACCESS_REFUSED - user '{first.user}' may enter from the node's own machine only"
            return [Refuse(event.request, 403, text)]
        user = self._registry.users.get(first.user)
        verifier = scram.parse_verifier(user.password_hash) if user and user.password_hash else None
        peer.exchange = scram.Exchange(first, verifier or scram.decoy(first.user, self._decoy_key))
        return [Challenge(event.request, peer.exchange.challenge)]

    def _keep_learned(self) -> list[Change]:
        """Store verifiers of passwords that peers have told, unless they were changed meanwhile."""
        changes: list[Change] = []
        while not self._learned.empty():
            name, before, after = self._learned.get()
            user = self._registry.users.get(name)
            if user is not None and user.password_hash == before:
                self._registry.change_user(name, password_hash=after)
                changes += self._offer()
        return changes

    def _offer(self) -> list[Change]:
        """What peers are offered, if that has changed. A client that finds SCRAM takes it and tries nothing else, so it
        is offered only if it would let in everyone who has a password.
        """
        best = (SCRAM,) if self._registry.all_provable() else ()
        offered, self._offered = self._offered, (*best, *MECHANISMS)
        return [] if offered == self._offered else [SetMechanisms(self._offered)]

    def _enter(self, event: AuthRequested, peer: _Peer, user: str | None, proof: bytes = b"") -> list[Change]:
        if user is None or user not in self._registry.users:
            return [_refuse_login(event)]
        peer.user = user
        return [Accept(event.request, proof=proof)]

    def _may_be_anonymous(self, peer: _Peer) -> bool:
        return self.settings.anonymous and peer.local

    def _on_open(self, event: OpenRequested) -> list[Change]:
        peer = self._peers.setdefault(event.conn, _Peer())
        if peer.user is None and self._may_be_anonymous(peer) and GUEST in self._registry.users:
            peer.user = GUEST  # AMQP 1.0 without a SASL layer
        if peer.user is None:
            return [Refuse(event.request, 530, "NOT_ALLOWED - the peer has not said who it is")]
        vhost = event.vhost or (self.settings.vhost if event.wire == "1.0" else "")
        if vhost not in self._registry.vhosts:
            return [Refuse(event.request, 530, f"NOT_ALLOWED - vhost {vhost} not found")]
        if not self._registry.permissions.may_enter(peer.user, vhost):
            text = f"NOT_ALLOWED - access to vhost '{vhost}' refused for user '{peer.user}'"
            return [Refuse(event.request, 530, text)]
        if crowded := self._crowded(peer.user, vhost):
            return [Refuse(event.request, 530, f"NOT_ALLOWED - {crowded}")]
        self._leave(peer)
        peer.vhost = vhost
        self._entered["user", peer.user] += 1
        self._entered["vhost", vhost] += 1
        return self._admit(event.request, peer.user, vhost)

    def _crowded(self, user: str, vhost: str) -> str | None:
        """Why one connection more is one too many."""
        limit = self._registry.limit("vhost", vhost, "max-connections")
        if limit is not None and self._entered["vhost", vhost] >= limit:
            return f"access to vhost '{vhost}' refused for user '{user}': connection limit ({limit}) is reached"
        limit = self._registry.limit("user", user, "max-connections")
        if limit is not None and self._entered["user", user] >= limit:
            return f"connection refused for user '{user}': user connection limit ({limit}) is reached"
        return None

    def _leave(self, peer: _Peer | None) -> None:
        if peer is None or peer.vhost is None or peer.user is None:
            return
        for key in (("user", peer.user), ("vhost", peer.vhost)):
            self._entered[key] -= 1
            if self._entered[key] <= 0:
                del self._entered[key]
        peer.vhost = None

    def _admit(self, request: int, user: str, vhost: str) -> list[Change]:
        principal = self._principals.get((user, vhost))
        if principal is not None:
            return [Accept(request, principal=principal)]
        principal = next(self._numbers)
        self._principals[user, vhost] = principal
        self._identities[principal] = user, vhost
        return [self._principal_row(principal), Accept(request, principal=principal)]

    def _principal_row(self, principal: int) -> SetPrincipal:
        user, vhost = self._identities[principal]
        may_impersonate = IMPERSONATOR in self._registry.users[user].tags
        channels_max = self._registry.limit("user", user, "max-channels")
        if channels_max is not None:
            channels_max = min(channels_max, CHANNELS_MAX)
        topics = self._registry.topics.rows(user, vhost)
        return SetPrincipal(principal, user, vhost, may_impersonate, topics, channels_max)

    # permissions

    def _on_access(self, event: AccessRequested) -> Grant:
        question = event.principal, event.operation, event.kind, event.name
        try:
            self.check(*question)
        except Refused as refused:
            return Grant(*question, allowed=False, text=str(refused))
        return Grant(*question, allowed=True)

    def identity(self, principal: int) -> tuple[str, str]:
        """(user, virtual host) of a principal; Refused if either was deleted."""
        identity = self._identities.get(principal)
        if identity is None:
            raise Refused("ACCESS_REFUSED - the user or the virtual host is gone", 403)
        return identity

    def allowed(self, principal: int, operation: Operation, name: str) -> bool:
        """May a principal do this to an exchange or queue of this name? The default exchange has the empty name."""
        identity = self._identities.get(principal)
        return identity is not None and self._registry.permissions.allow(*identity, operation, name)

    def check(self, principal: int, operation: Operation, kind: Literal["queue", "exchange"], name: str) -> None:
        """Refused(403) unless the principal is allowed."""
        user, vhost = self.identity(principal)
        if not self._registry.permissions.allow(user, vhost, operation, name):
            what = f"{operation} access to {kind} '{name}' in vhost '{vhost}'"
            raise Refused(f"ACCESS_REFUSED - {what} refused for user '{user}'", 403)

    def check_topic(self, principal: int, exchange: str, key: str) -> None:
        """Refused(403) unless the principal may bind to this topic exchange by this key."""
        user, vhost = self.identity(principal)
        if not self._registry.topics.may_read(user, vhost, exchange, key):
            what = f"read access to topic '{key}' in exchange '{exchange}' in vhost '{vhost}'"
            raise Refused(f"ACCESS_REFUSED - {what} refused for user '{user}'", 403)

    def may_topic(self, user: str, vhost: str, operation: Literal["write", "read"], exchange: str, key: str) -> bool:
        """May a user publish with this key to a topic exchange, or bind to it by this key?"""
        topics = self._registry.topics
        return (topics.may_read if operation == "read" else topics.may_write)(user, vhost, exchange, key)

    def queues_max(self, vhost: str) -> int | None:
        """How many queues a virtual host may have."""
        return self._registry.limit("vhost", vhost, "max-queues")

    def user_of(self, conn: int) -> str | None:
        """Who entered by this connection."""
        peer = self._peers.get(conn)
        return None if peer is None else peer.user

    def entered(self, conn: int) -> tuple[str, str] | None:
        """(virtual host, user) of a connection that was let in."""
        peer = self._peers.get(conn)
        return None if peer is None or peer.vhost is None or peer.user is None else (peer.vhost, peer.user)

    def may_enter(self, user: str, vhost: str) -> bool:
        """Has a user any permission in a virtual host?"""
        return self._registry.permissions.may_enter(user, vhost)

    def may(self, user: str, vhost: str, operation: Operation, name: str) -> bool:
        """May a user do this to an exchange or queue of this name?"""
        return self._registry.permissions.allow(user, vhost, operation, name)

    def asked(self, user: str, vhost: str, exchange: str | None = None) -> tuple[int, int]:
        """How often a permission, or one on the topics of an exchange, was asked, and how often it said no."""
        if exchange is None:
            return self._registry.permissions.asked(user, vhost)
        return self._registry.topics.asked(user, vhost, exchange)

    def pattern(self, text: str) -> re.Pattern[str]:
        """A pattern for names that cannot stall the node; ConfigError if this text is none."""
        return compile_pattern(text)

    def hash_password(self, password: str | bytes) -> str:
        """What is kept of a password, by this node's cost: slow, and may run on any thread."""
        if self.settings.scram:
            return scram.make_verifier(password, self.settings.scram_iterations).encode()
        return hash_password(password, self.settings.hash_cost)

    def verify(self, name: str, password: bytes, *, local: bool, verdict: Callable[[bool], None]) -> bool:
        """Is this the password of this user? The verdict comes now, or later from a worker thread; False if it never
        will, because too many wait.
        """
        if name in self.settings.loopback_users and not local:
            verdict(False)
            return True
        user = self._registry.users.get(name)
        encoded = user.password_hash if user else None
        if self._verifier.recall(name, encoded, password):
            verdict(True)
            return True
        return self._verifier.ask(name, encoded, password, verdict)

    # management: each call is durable when it returns; the changes are for the engine

    def add_user(
        self, name: str, password: str | None = None, *, password_hash: str | None = None, tags: Iterable[str] = ()
    ) -> list[Change]:
        """Make a user, or replace its password and tags. A password in clear costs a slow hash here; a hash costs
        nothing.
        """
        if password is not None:
            password_hash = self.hash_password(password)
        self._registry.put_user(name, password_hash, tags)
        return [*self._principal_rows(name), *self._offer()]

    def delete_user(self, name: str) -> list[Change]:
        """Delete a user; its connections are closed."""
        self._registry.delete_user(name)
        text = f"CONNECTION_FORCED - user '{name}' was deleted"
        conns = [conn for conn, peer in self._peers.items() if peer.user == name]
        closed = (CloseConnection(conn, 320, text) for conn in conns)
        return [*self._forget_principals(user=name), *closed, *self._offer()]

    def change_password(
        self, name: str, password: str | None = None, *, password_hash: str | None = None
    ) -> list[Change]:
        """Set a new password; who is in stays in."""
        if password is not None:
            password_hash = self.hash_password(password)
        self._registry.change_user(name, password_hash=password_hash)
        return self._offer()

    def set_tags(self, name: str, tags: Iterable[str]) -> list[Change]:
        """Replace a user's tags."""
        before, after = self._registry.change_user(name, tags=tags)
        changed = (IMPERSONATOR in before.tags) != (IMPERSONATOR in after.tags)
        return self._principal_rows(name) if changed else []

    def users(self) -> list[User]:
        """Every user."""
        return list(self._registry.users.values())

    def add_vhost(self, name: str) -> list[Change]:
        """Make a virtual host, without exchanges: call the broker's, which calls this."""
        is_new = name not in self._registry.vhosts
        self._registry.add_vhost(name)
        return [CreateVhost(name)] if is_new else []

    def delete_vhost(self, name: str) -> list[Change]:
        """Delete a virtual host with its permissions: call the broker's, which calls this. The kernel closes its
        connections.
        """
        if name == self.settings.vhost:
            raise Refused(f"PRECONDITION_FAILED - virtual host '{name}' is the default one", 406)
        self._registry.delete_vhost(name)
        return [*self._forget_principals(vhost=name), DeleteVhost(name)]

    def vhosts(self) -> list[str]:
        """Every virtual host."""
        return list(self._registry.vhosts)

    def notes(self, vhost: str) -> Notes:
        """What is said of a virtual host."""
        return self._registry.vhosts.get(vhost) or Notes()

    def note(self, vhost: str, notes: Notes) -> None:
        """Say what a virtual host is for."""
        self._registry.note(vhost, notes)

    def queue_type(self, vhost: str) -> str | None:
        """The type of queues that are declared without one."""
        return self.notes(vhost).queue_type

    def set_permission(
        self, user: str, vhost: str, *, configure: str = "", write: str = "", read: str = ""
    ) -> list[Change]:
        """Set what a user may do in a virtual host; holds at once for whoever is in."""
        self._registry.set_permission(Permission(user, vhost, configure, write, read))
        return self._revoke(user, vhost)

    def clear_permission(self, user: str, vhost: str) -> list[Change]:
        """Take away whatever a user may do in a virtual host."""
        self._registry.clear_permission(user, vhost)
        return self._revoke(user, vhost)

    def permissions(self) -> list[Permission]:
        """Every permission."""
        return self._registry.permissions.records()

    def set_topic_permission(
        self, user: str, vhost: str, exchange: str, *, write: str = "", read: str = ""
    ) -> list[Change]:
        """Set which keys a user may use with a topic exchange; holds at once for whoever is in."""
        self._registry.set_topic_permission(TopicPermission(user, vhost, exchange, write, read))
        return self._principal_rows(user)

    def clear_topic_permission(self, user: str, vhost: str, exchange: str | None = None) -> list[Change]:
        """Open an exchange, or all of them, to any key again."""
        self._registry.clear_topic_permission(user, vhost, exchange)
        return self._principal_rows(user)

    def topic_permissions(self) -> list[TopicPermission]:
        """Every permission on topics."""
        return self._registry.topics.records()

    def set_limit(self, limit: Limit) -> list[Change]:
        """Bound what a user or a virtual host may have; who is in stays in."""
        self._registry.set_limit(limit)
        return self._principal_rows(limit.name) if limit.kind == "user" else []

    def clear_limit(self, kind: str, name: str, what: str | None = None) -> list[Change]:
        """Forget one limit, or all of a user or virtual host."""
        self._registry.clear_limit(kind, name, what)
        return self._principal_rows(name) if kind == "user" else []

    def limits(self) -> list[Limit]:
        """Every limit of users and virtual hosts."""
        return self._registry.limits()

    def _revoke(self, user: str, vhost: str) -> list[Change]:
        principal = self._principals.get((user, vhost))
        return [] if principal is None else [Revoke(principal)]

    def _principal_rows(self, user: str) -> list[Change]:
        return [self._principal_row(number) for number, identity in self._identities.items() if identity[0] == user]

    def _forget_principals(self, *, user: str | None = None, vhost: str | None = None) -> list[Change]:
        gone = [
            (identity, number)
            for identity, number in self._principals.items()
            if user == identity[0] or vhost == identity[1]
        ]
        for identity, number in gone:
            del self._principals[identity], self._identities[number]
        return [Revoke(number) for _, number in gone]

    def _prepare(self, *, is_new: bool) -> None:
        """The default virtual host, and the guest in it."""
        registry = self._registry
        registry.add_vhost(self.settings.vhost)
        guest = registry.users.get(GUEST)
        guest_hash = guest.password_hash if guest else None
        if is_new and self.settings.guest:
            self.add_user(GUEST, GUEST, tags=("administrator",))
            self.set_permission(GUEST, self.settings.vhost, configure=".*", write=".*", read=".*")
        elif guest_hash and not self.settings.guest and verify_password(GUEST, guest_hash):
            registry.delete_user(GUEST)
        elif guest_hash and self.settings.scram and _is_everyones(guest_hash):
            registry.change_user(GUEST, password_hash=self.hash_password(GUEST))


def _is_everyones(guest_hash: str) -> bool:
    """Is it a plain hash of the password that everyone knows, so that nobody has to tell it first?"""
    return scram.parse_verifier(guest_hash) is None and verify_password(GUEST, guest_hash)


def _refuse_login(event: AuthRequested) -> Refuse:
    return Refuse(
        event.request, 403, f"ACCESS_REFUSED - Login was refused using authentication mechanism {event.mechanism}"
    )
