"""The copies of a fabric's directory become equal, in any topology, whoever dies."""

from __future__ import annotations

import asyncio
import random
from functools import partial

import pytest

from weft.directory import Embedded, book
from weft.directory.book import LEAP_MAX, VERSION_END, Book, Record, record_of
from weft.model.errors import RemoteProtocolError, Unavailable
from weft.store import Store


def test_the_dead_are_dropped_and_the_living_object() -> None:
    one, other = Book("one"), Book("other")
    record = one.put("/services/x/one", {"n": 1}, ephemeral=True)
    other.merge([record])
    marks = other.drop_owner("one")
    assert other.get("/services/x/one") is None
    news, answers = one.merge(marks)
    assert news == []
    assert [answer.value for answer in answers] == [{"n": 1}]
    other.merge(answers)
    assert other.get("/services/x/one") is not None


def test_entries_of_a_former_life_are_taken_back() -> None:
    other = Book("other")
    other.merge([Book("one").put("/services/x/one", {"n": 1}, ephemeral=True)])
    reborn = Book("one")
    _, answers = reborn.merge(other.all())
    other.merge(answers)
    assert other.get("/services/x/one") is None


def test_what_came_once_and_went_is_forgotten_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(book, "MARKS_MAX", 10)
    nodes = {name: Embedded(name) for name in "abc"}
    told: list[int] = []

    def spread(sender: str, records: list[dict[str, object]], but: str) -> None:
        told.append(len(records))
        for name, node in nodes.items():
            if name not in (sender, but):
                node.receive(sender, records)

    for name, node in nodes.items():
        node.spread = partial(spread, name)  # type: ignore[assignment]
    marks = []
    for number in range(100):
        path = f"/members/{number}"
        asyncio.run(nodes["a"].put(path, {}, ephemeral=True))
        asyncio.run(nodes["a"].delete(path))
        marks.append(nodes["a"]._book.all()[-1].to_table())
    for node in nodes.values():
        kept = sorted(int(record.path.rpartition("/")[2]) for record in node._book.all())
        assert len(kept) < 20
        assert kept == list(range(100 - len(kept), 100)), "the newest"
    told.clear()
    nodes["b"].receive("a", [dict(mark) for mark in marks])
    assert told == [], "and nobody talks about the others again"
    assert len(nodes["b"]._book.all()) < 20


def test_a_version_out_of_the_world_leaves_numbers_for_all_others() -> None:
    here, there = Book("here"), Book("there")
    wild = Record("/wild", {"by": "mistake"}, VERSION_END - 2, "zed")
    usual = here.put("/usual", {}, ephemeral=False)
    here.load([wild])
    there.merge([usual, wild])
    changed = here.put("/usual", {"a": 1}, ephemeral=False)
    assert changed.version < LEAP_MAX
    told = [record_of(changed.to_table()), record_of(here.put("/wild", {"by": "us"}, ephemeral=False).to_table())]
    there.merge(told)
    assert [there.get(path) for path in ("/usual", "/wild")] == told

    late = Record("/late", {}, 1_000_000, "there")
    here.merge([late])
    assert here.put("/new", {}, ephemeral=False).version == late.version + 1, "what others really did counts"


def test_a_full_book_takes_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(book, "RECORDS_MAX", 2)
    full = Book("one")
    for path in ("/a", "/b", "/a"):
        full.put(path, {}, ephemeral=False)
    with pytest.raises(Unavailable, match="the directory is full"):
        full.put("/c", {}, ephemeral=False)


@pytest.mark.parametrize("seed", range(10))
async def test_random_fabrics_agree(seed: int) -> None:
    rng = random.Random(seed)
    names = [f"n{number}" for number in range(rng.randint(2, 12))]
    nodes = {name: Embedded(name) for name in names}
    edges = {frozenset((name, names[at // 2])) for at, name in enumerate(names) if at}
    edges |= {frozenset(rng.sample(names, 2)) for _ in names}
    cut: set[frozenset[str]] = set()
    wire: list[tuple[str, str, object]] = []

    def spreader(name: str) -> object:
        def spread(records: list[dict[str, object]], but: str) -> None:
            wire.extend(
                (name, other, records) for other in names if other != but and frozenset((name, other)) in edges - cut
            )

        return spread

    for name, node in nodes.items():
        node.spread = spreader(name)  # type: ignore[assignment]

    def deliver() -> None:
        while wire:
            sender, receiver, records = wire.pop(rng.randrange(len(wire)))
            nodes[receiver].receive(sender, records)

    for _ in range(80):
        node = nodes[rng.choice(names)]
        path = f"/p/{rng.randint(0, 5)}"
        if rng.random() < 0.7:
            await node.put(path, {"n": rng.random()})
        else:
            await node.delete(path)
        if rng.random() < 0.2:
            cut.add(rng.choice(sorted(edges, key=sorted)))
        if rng.random() < 0.4:
            deliver()
    for edge in sorted(cut, key=sorted):
        cut.discard(edge)
        for sender, receiver in (sorted(edge), sorted(edge, reverse=True)):
            wire.extend((sender, receiver, piece) for piece in nodes[sender].everything())
    deliver()
    views = [[(entry.path, entry.value) for entry in await node.entries("/")] for node in nodes.values()]
    assert all(view == views[0] for view in views)


async def test_lasting_entries_are_stored() -> None:
    store = Store()
    async with Embedded("a", store) as directory:
        await directory.put("/kept", {"n": 1})
        await directory.put("/mine", {"n": 1}, ephemeral=True)
        await directory.put("/gone", {"n": 1})
        await directory.delete("/gone")
        await directory.put("/no longer", {"n": 1})
        await directory.put("/no longer", {"n": 2}, ephemeral=True)
    async with Embedded("a", store) as directory:
        assert [entry.path for entry in await directory.entries("/")] == ["/kept"]
        assert (await directory.put("/kept", {"n": 2})).version > 3
    store.close()


@pytest.mark.parametrize("table", [None, {}, {"p": "x", "v": {}, "n": 1, "o": "", "e": False}, {"p": "/x", "v": 1}])
def test_nonsense_is_refused(table: object) -> None:
    with pytest.raises(RemoteProtocolError):
        record_of(table)
