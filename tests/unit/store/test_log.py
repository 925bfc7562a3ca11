"""The log of the definitions on a disk that turns bits over: each of them is put right, and nothing else is touched."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from weft.store.definitions import Store
from weft.store.log import ASIDE, mend
from weft.store.records import Queue

NAMES = [f"queue-{number}" for number in range(12)]


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, bytes]:
    """The file and the log that a node leaves which was killed."""
    path = tmp_path_factory.mktemp("crashed") / "definitions"
    store = Store(path)
    for name in NAMES:
        with store.transaction():
            store.put_queue(Queue("/", name, number=len(name)))
    found = path.read_bytes(), path.with_name("definitions-wal").read_bytes()
    store.close()
    return found


@pytest.fixture
def path(tmp_path: Path, crashed: tuple[bytes, bytes]) -> Path:
    path = tmp_path / "definitions"
    path.write_bytes(crashed[0])
    return path


def log_of(path: Path) -> Path:
    return path.with_name("definitions-wal")


def test_a_bit_that_was_turned_over_is_turned_back(path: Path, crashed: tuple[bytes, bytes]) -> None:
    """Of a frame the highest bits of many words have the same sum: there it does not matter which one is turned, as
    long as the page was written again. If it was not, the log is left alone, and that is told.
    """
    whole, log = crashed[1], log_of(path)
    dice = random.Random(3)
    frame = 24 + 4096
    places = [*range(0, 32, 5), *range(32, 32 + 24, 3), *range(len(whole) - frame + 8, len(whole) - frame + 24)]
    places += [dice.randrange(len(whole)) for _ in range(30)]
    mended = 0
    for place in places:
        harmed = bytearray(whole)
        harmed[place] ^= 1 << dice.randrange(8)
        log.write_bytes(harmed)
        [words] = mend(log)
        if "put right" not in words:
            assert "may be missing" in words
            assert log.read_bytes() == harmed
            continue
        mended += 1
        assert mend(log) == [], "it is in order now"
        assert frames_at_end(log.read_bytes()) == frames_at_end(whole), place
    assert mended > 0.8 * len(places)


def frames_at_end(log: bytes) -> dict[int, bytes]:
    """The last frame of each page, which is what counts."""
    frames = (log[at : at + 24 + 4096] for at in range(32, len(log), 24 + 4096))
    return {int.from_bytes(frame[:4]): frame for frame in frames}


def test_definitions_are_all_there_after_that(path: Path, crashed: tuple[bytes, bytes]) -> None:
    harmed = bytearray(crashed[1])
    harmed[len(harmed) // 2] ^= 4
    log_of(path).write_bytes(harmed)
    store = Store(path)
    assert sorted(queue.name for queue in store.queues()) == sorted(NAMES)
    assert len(store.found) == 1
    store.close()


def test_what_cannot_be_put_right_is_told_and_kept_aside(path: Path, crashed: tuple[bytes, bytes]) -> None:
    for harm in (slice(4, 30), slice(9_000, 9_100)):
        log, harmed = log_of(path), bytearray(crashed[1])
        harmed[harm] = bytes(0xA5 for _ in harmed[harm])
        log.write_bytes(harmed)
        [words] = mend(log)
        assert "may be missing" in words
        assert log.read_bytes() == harmed, "nothing is guessed"
        assert log.with_name(log.name + ASIDE).read_bytes() == harmed


def test_a_torn_end_is_no_damage(path: Path, crashed: tuple[bytes, bytes]) -> None:
    log = log_of(path)
    for length in (0, 20, 32, 5_000, len(crashed[1]) - 1, len(crashed[1])):
        log.write_bytes(crashed[1][:length])
        assert mend(log) == []
    log.write_bytes(crashed[1][:-200] + bytes(0xA5 for _ in range(200)))
    [words] = mend(log)
    assert "may be missing" in words, "whether it was promised cannot be told"


def test_a_log_that_was_begun_anew_is_in_order(tmp_path: Path) -> None:
    """What was there before lies behind what is there now."""
    path = tmp_path / "definitions"
    store = Store(path)
    for name in NAMES:
        with store.transaction():
            store.put_queue(Queue("/", name))
    store._database.execute("PRAGMA wal_checkpoint(RESTART)")
    with store.transaction():
        store.put_queue(Queue("/", "later"))
    assert mend(log_of(path)) == []
    store.close()
