"""Whatever keeps the entries, they behave the same: the suite every directory passes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from uuid import uuid4

import pytest

import zookeepers
from weft.directory import Difference, Directory, Embedded, open_directory
from weft.model.errors import ConfigError, Unavailable

WAIT_S = 30.0
Maker = Callable[[str], Directory]


class Mesh:
    """Embedded directories that hear each other through a list."""

    def __init__(self) -> None:
        self.nodes: dict[str, Embedded] = {}

    def add(self, name: str) -> Embedded:
        directory = Embedded(name)

        def spread(records: list[dict[str, object]], but: str) -> None:
            for other, peer in list(self.nodes.items()):
                if other not in (name, but):
                    peer.receive(name, records)

        directory.spread = spread
        for other, peer in self.nodes.items():
            for piece in peer.everything():
                directory.receive(other, piece)
        self.nodes[name] = directory
        return directory


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zookeepers.ZooKeeperServer]:
    if not zookeepers.installed():
        pytest.skip("needs java and Debian's zookeeper")
    server = zookeepers.ZooKeeperServer(tmp_path_factory.mktemp("zookeeper"))
    yield server
    server.stop()


@pytest.fixture(params=["embedded", "zookeeper"])
def make(request: pytest.FixtureRequest) -> Maker:
    """Makes one more member of the same directory."""
    if request.param == "embedded":
        return Mesh().add
    server = request.getfixturevalue("zookeeper")
    root = f"weft-{uuid4().hex}"
    return lambda name: open_directory(f"zookeeper://{server.hosts}/{root}", name)


@pytest.fixture
async def pair(make: Maker) -> AsyncIterator[tuple[Directory, Directory]]:
    async with AsyncExitStack() as life:
        yield await life.enter_async_context(make("a")), await life.enter_async_context(make("b"))


class Seen:
    """What a watcher was told, awaitable."""

    def __init__(self) -> None:
        self.now: dict[str, dict[str, object]] = {}
        self.calls = 0
        self._news = asyncio.Event()

    def __call__(self, differences: Sequence[Difference]) -> None:
        self.calls += 1
        for difference in differences:
            if difference.entry is None:
                self.now.pop(difference.path, None)
            else:
                self.now[difference.path] = difference.entry.value
        self._news.set()

    async def until(self, wanted: dict[str, dict[str, object]], wait_s: float = WAIT_S) -> None:
        async with asyncio.timeout(wait_s):
            while self.now != wanted:
                self._news.clear()
                await self._news.wait()


async def test_what_one_puts_the_other_gets(pair: tuple[Directory, Directory]) -> None:
    one, other = pair
    put = await one.put("/services/user.lifecycle", {"queue": "q", "nodes": ["é", 1, None]})
    got = await other.get("/services/user.lifecycle")
    assert got is not None
    assert got.value == {"queue": "q", "nodes": ["é", 1, None]}
    assert (await other.put("/services/user.lifecycle", {})).version > put.version
    assert await one.delete("/services/user.lifecycle")
    assert not await other.delete("/services/user.lifecycle")
    assert await other.get("/services/user.lifecycle") is None


async def test_a_list_is_what_is_below(pair: tuple[Directory, Directory]) -> None:
    one, other = pair
    for path in ("/a/1", "/a/2/x", "/ab", "/b"):
        await one.put(path, {"at": path})
    assert [entry.path for entry in await other.entries("/a")] == ["/a/1", "/a/2/x"]
    assert [entry.path for entry in await other.entries("/")] == ["/a/1", "/a/2/x", "/ab", "/b"]
    assert await other.entries("/none") == []


async def test_a_watcher_hears_what_is_there_and_what_happens(pair: tuple[Directory, Directory]) -> None:
    one, other = pair
    await one.put("/w/old", {"n": 1})
    seen = Seen()
    watch = await other.watch("/w", seen)
    assert seen.now == {"/w/old": {"n": 1}}
    await one.put("/w/new", {"n": 2})
    await one.put("/w/old", {"n": 3})
    await one.put("/elsewhere", {"n": 4})
    await seen.until({"/w/old": {"n": 3}, "/w/new": {"n": 2}})
    await other.delete("/w/old")
    await seen.until({"/w/new": {"n": 2}})
    watch.close()
    await one.put("/w/late", {"n": 5})
    await one.put("/last", {})
    assert "/w/late" not in seen.now


async def test_what_is_ephemeral_ends_with_its_owner(make: Maker) -> None:
    async with make("stays") as stays:
        async with make("leaves") as leaves:
            await leaves.put("/presence/leaves", {"here": True}, ephemeral=True)
            await leaves.put("/lasting", {"here": True})
            seen = Seen()
            await stays.watch("/presence", seen)
            assert seen.now == {"/presence/leaves": {"here": True}}
            entry = await stays.get("/presence/leaves")
            assert entry is not None
            assert entry.ephemeral
        await seen.until({})
        assert await stays.get("/presence/leaves") is None
        assert await stays.get("/lasting") is not None


@pytest.mark.parametrize("path", ["", "no-slash", "//", "/a//b", "/a/", "/..", "/a\n", "/" + "x" * 2000])
async def test_a_wrong_path_is_refused(pair: tuple[Directory, Directory], path: str) -> None:
    with pytest.raises(ConfigError, match="not a path"):
        await pair[0].put(path, {})


async def test_a_value_must_be_plain_and_small(pair: tuple[Directory, Directory]) -> None:
    with pytest.raises(ConfigError, match="plain"):
        await pair[0].put("/x", {"f": object()})
    with pytest.raises(ConfigError, match="bytes"):
        await pair[0].put("/x", {"f": "x" * 300_000})


@pytest.mark.slow
async def test_zookeeper_may_go_and_come_back(zookeeper: zookeepers.ZooKeeperServer) -> None:
    url = f"zookeeper://{zookeeper.hosts}/weft-{uuid4().hex}"
    async with open_directory(url, "a") as one, open_directory(url, "b") as other:
        await one.put("/w/presence", {"n": 1}, ephemeral=True)
        seen = Seen()
        await other.watch("/w", seen)
        zookeeper.stop()
        with pytest.raises(Unavailable):
            await one.put("/elsewhere", {})  # what was refused on its way out may still arrive
        assert seen.now == {"/w/presence": {"n": 1}}, "what is known stays known"
        zookeeper.start()
        async with asyncio.timeout(30):
            while True:
                try:
                    await one.put("/w/back", {"n": 2})
                    break
                except Unavailable:
                    await asyncio.sleep(0.1)
        await seen.until({"/w/presence": {"n": 1}, "/w/back": {"n": 2}}, 40)


async def test_a_session_that_is_over_begins_anew(zookeeper: zookeepers.ZooKeeperServer) -> None:
    """As after a long cut: what was ephemeral is there again, what was watched is still told, and what happened in
    between too.
    """
    kazoo = pytest.importorskip("kazoo.client")
    url = f"zookeeper://{zookeeper.hosts}/weft-{uuid4().hex}"
    async with open_directory(url, "a") as one, open_directory(url, "b") as other:
        await one.put("/w/presence", {"n": 1}, ephemeral=True)
        seen = Seen()
        await one.watch("/w", seen)
        session = one._client.client_id  # type: ignore[attr-defined]
        taker = kazoo.KazooClient(zookeeper.hosts, client_id=session)
        await asyncio.to_thread(taker.start)
        await asyncio.to_thread(taker.stop)  # which ends it for both
        await asyncio.to_thread(taker.close)
        await other.put("/w/meanwhile", {"n": 2})
        await seen.until({"/w/presence": {"n": 1}, "/w/meanwhile": {"n": 2}}, 40)
        async with asyncio.timeout(40):
            while (entry := await other.get("/w/presence")) is None:  # noqa: ASYNC110 - nobody tells `other`
                await asyncio.sleep(0.02)
        assert entry.ephemeral
        assert one._client.client_id != session  # type: ignore[attr-defined]
        await other.put("/w/after", {"n": 3})
        await seen.until({"/w/presence": {"n": 1}, "/w/meanwhile": {"n": 2}, "/w/after": {"n": 3}}, 40)


async def test_nobody_there_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.directory.zookeeper.TIMEOUT_S", 0.3)
    directory = open_directory("zookeeper://127.0.0.1:1/weft", "a")
    with pytest.raises(Unavailable, match="no ZooKeeper answers"):
        await directory.start()
    await directory.stop()


@pytest.mark.parametrize("url", ["http://x", "zookeeper://", "nothing"])
def test_a_wrong_url_is_said(url: str) -> None:
    with pytest.raises(ConfigError, match="is no directory"):
        open_directory(url, "a")
