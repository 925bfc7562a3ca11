"""The directory in Apache ZooKeeper, as the talk has it: one ensemble beside the fabric, sessions for presence.

Owns the client (kazoo), the folder of znodes under a root, and caches for what is watched. Calls run on kazoo's threads
and are waited for; differences come back to the loop's thread.
It must not stop a node when ZooKeeper is gone: calls fail with Unavailable, watchers keep what they know and hear what
has changed once it is back.
Rule: ephemeral entries are ephemeral znodes, so they end with the session; a new session puts them again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Self, TypeVar

from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import KazooException, NodeExistsError, NoNodeError, NotEmptyError
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.recipe.cache import TreeCache, TreeEvent
from kazoo.retry import KazooRetry

from weft.directory.base import (
    Difference,
    Entry,
    Value,
    Watch,
    Watcher,
    check_path,
    check_prefix,
    decode_value,
    encode_value,
)
from weft.model.errors import Unavailable

TIMEOUT_S = 5.0
SESSION_S = 4.0
"""A node that says nothing for this long is gone, and its ephemeral entries with it."""
_T = TypeVar("_T")


class ZooKeeper:
    """Entries below a root of a ZooKeeper ensemble."""

    def __init__(self, hosts: str, root: str = "/weft", *, session_s: float = SESSION_S) -> None:
        """`hosts` as ZooKeeper spells them: host:port[,host:port…]."""
        self._root = check_path(root)
        self._hosts = hosts
        self._client = KazooClient(
            hosts,
            timeout=session_s,
            connection_retry={"max_tries": -1, "max_delay": 2.0},
            command_retry={"max_tries": 1},
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._own: dict[str, Value] = {}
        self._was_lost = False
        self._seen: dict[str, Entry] = {}

    async def start(self) -> None:
        """Connect; Unavailable if nobody answers in time, and then it goes on trying."""
        self._loop = asyncio.get_running_loop()
        self._client.add_listener(self._on_state)
        event = self._client.start_async()
        if not await asyncio.to_thread(event.wait, TIMEOUT_S):
            raise Unavailable(f"no ZooKeeper answers at {self._hosts}")
        await self._call(lambda: self._client.ensure_path(self._root))

    async def stop(self) -> None:
        """End the session: what was ephemeral goes."""
        self._client.remove_listener(self._on_state)
        await asyncio.to_thread(self._client.stop)
        await asyncio.to_thread(self._client.close)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.stop()

    async def put(self, path: str, value: Value, *, ephemeral: bool = False) -> Entry:
        """Make an entry, or change it."""
        check_path(path)
        data = encode_value(value)
        version = await self._call(lambda: self._put(path, data, ephemeral))
        if ephemeral:
            self._own[path] = value
        return Entry(path, value, version, ephemeral=ephemeral)

    async def get(self, path: str) -> Entry | None:
        """One entry."""
        return await self._call(lambda: self._get(check_path(path)))

    async def delete(self, path: str) -> bool:
        """Take an entry away; was it there?"""
        self._own.pop(check_path(path), None)
        return await self._call(lambda: self._delete(path))

    async def entries(self, prefix: str) -> list[Entry]:
        """The entries at and below a path."""
        return await self._call(lambda: self._list(check_prefix(prefix)))

    def known(self) -> list[Entry]:
        """What was watched."""
        return [entry for _, entry in sorted(self._seen.items())]

    async def watch(self, prefix: str, watcher: Watcher) -> Watch:
        """Tell of everything that happens at and below a path."""
        watch = _Watch(self, check_prefix(prefix), watcher)
        try:
            await self._call(watch.open)
            await asyncio.wait_for(watch.ready.wait(), TIMEOUT_S)
        except (Unavailable, TimeoutError):
            watch.close()  # who asks again must not hear everything twice
            raise Unavailable(f"ZooKeeper at {self._hosts} does not tell what is below {prefix}") from None
        return watch

    # on kazoo's threads

    def _full(self, path: str) -> str:
        return self._root + path

    def _put(self, path: str, data: bytes, ephemeral: bool) -> int:
        client, full = self._client, self._full(path)
        try:
            stat = client.get(full)[1]
        except NoNodeError:
            try:
                client.create(full, data, ephemeral=ephemeral, makepath=True)
            except NodeExistsError:
                return self._put(path, data, ephemeral)
            return int(client.get(full)[1].mzxid)
        if ephemeral and stat.ephemeralOwner and stat.ephemeralOwner != client.client_id[0]:
            client.delete(full)  # of a session that is not over yet: ours takes its place
            return self._put(path, data, ephemeral)
        return int(client.set(full, data).mzxid)

    def _get(self, path: str) -> Entry | None:
        try:
            data, stat = self._client.get(self._full(path))
        except NoNodeError:
            return None
        return _entry(path, data, stat) if data or stat.ephemeralOwner else None

    def _delete(self, path: str) -> bool:
        full = self._full(path)
        try:
            data, stat = self._client.get(full)
            if not data and not stat.ephemeralOwner:
                return False  # a folder
            self._client.delete(full)
        except NoNodeError:
            return False
        except NotEmptyError:
            self._client.set(full, b"")  # others are below it: what is left is their folder
        return True

    def _list(self, prefix: str) -> list[Entry]:
        found: list[Entry] = []
        pending = [prefix]
        while pending:
            path = pending.pop()
            try:
                children = self._client.get_children(self._full(path))
                entry = self._get(path) if path else None
            except NoNodeError:
                continue
            if entry is not None:
                found.append(entry)
            pending += [f"{path}/{child}" for child in children]
        return sorted(found, key=lambda entry: entry.path)

    async def _call(self, work: Callable[[], _T]) -> _T:
        if not self._client.connected:
            # kazoo would keep the request and send it when the server is back, long after we said no.
            raise Unavailable(f"ZooKeeper at {self._hosts} cannot be reached: the connection is lost")
        try:
            return await asyncio.wait_for(asyncio.to_thread(work), TIMEOUT_S)
        except (KazooException, KazooTimeoutError, TimeoutError) as error:
            reason = str(error) or type(error).__name__
            raise Unavailable(f"ZooKeeper at {self._hosts} cannot be reached: {reason}") from None

    def _on_state(self, state: str) -> None:
        """kazoo's thread: a new session begins without the ephemeral entries of the last."""
        if state == KazooState.LOST:
            self._was_lost = True
        elif state == KazooState.CONNECTED and self._was_lost:
            self._was_lost = False
            self._client.handler.spawn(self._put_own_again)

    def _put_own_again(self) -> None:
        retry = KazooRetry(max_tries=-1, max_delay=1.0)
        for path, value in list(self._own.items()):
            try:
                retry(self._put, path, encode_value(value), True)
            except KazooException:
                return  # the session is over already; the next one repeats it

    def _tell(self, watcher: Watcher, differences: list[Difference]) -> None:
        """kazoo's thread: hand differences over to the loop's."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._note, watcher, differences)

    def _note(self, watcher: Watcher, differences: list[Difference]) -> None:
        for difference in differences:
            if difference.entry is None:
                self._seen.pop(difference.path, None)
            else:
                self._seen[difference.path] = difference.entry
        watcher(differences)


class _Watch:
    """One watched part of the tree, with kazoo's cache under it, which survives the loss of a session."""

    def __init__(self, home: ZooKeeper, prefix: str, watcher: Watcher) -> None:
        self._home = home
        self._prefix = prefix
        self._watcher = watcher
        self._cache: TreeCache | None = None
        self._first: list[Difference] | None = []
        self.ready = asyncio.Event()

    def open(self) -> None:
        """On a thread: begin."""
        client = self._home._client
        full = self._home._full(self._prefix)
        client.ensure_path(full)
        self._cache = TreeCache(client, full)
        self._cache.listen(self._on_event)
        self._cache.start()

    def close(self) -> None:
        """Tell it nothing more."""
        if self._cache is not None:
            self._cache.close()

    def _on_event(self, event: TreeEvent) -> None:
        if event.event_type == TreeEvent.INITIALIZED:
            first, self._first = self._first or [], None
            self._home._tell(self._begin, first)
            return
        if event.event_type not in (TreeEvent.NODE_ADDED, TreeEvent.NODE_UPDATED, TreeEvent.NODE_REMOVED):
            return
        path = event.event_data.path.removeprefix(self._home._root)
        if not path:
            return
        data = event.event_data
        is_folder = not data.data and not data.stat.ephemeralOwner  # ZooKeeper needs them for what is below
        is_gone = event.event_type == TreeEvent.NODE_REMOVED or is_folder
        difference = Difference(path, None if is_gone else _entry(path, data.data, data.stat))
        if self._first is None:
            self._home._tell(self._watcher, [difference])
        else:
            self._first.append(difference)

    def _begin(self, differences: Any) -> None:
        self._watcher(differences)
        self.ready.set()


def _entry(path: str, data: bytes, stat: Any) -> Entry:
    return Entry(path, decode_value(data), int(stat.mzxid), ephemeral=bool(stat.ephemeralOwner))
