"""Disks that are full, read-only or were torn: a node says so in words, keeps what it promised, and goes on by itself.

Owns small file systems and damaged files. A node runs on a folder that misbehaves; clients see publishers wait and
nothing lost, and the operator reads a line. Mounting needs root: where that is not allowed, the tests that need it
are skipped and say so. Rules: docs/guides/durability.md, "When the disk is full" and "After a crash".
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pika.exceptions import AMQPError, ConnectionClosed

from interop.proton10 import data
from interop.support import depth, receive
from interop.test_proton_transactions import Coordinator

from .conftest import StartNode
from .living import PERSISTENT, LivingNode, get_all, publish_stored
from .test_streams import read_all

DISK_BYTES = 80 << 20
FREE_BYTES = 4 << 20
BODY = bytes(64 << 10)
WAIT_S = 20.0
RETRY_S = 1.2
"""The node has tried a disk that refused once more after this."""
PARTS = 20
"""Messages of one transaction."""

Mount = Callable[..., Path]


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Mount]:
    """A function that mounts a small file system of its own."""
    place = tmp_path / "disk"
    mounted = []

    def mount_at(*options: str) -> Path:
        place.mkdir(exist_ok=True)
        words = ",".join((f"size={DISK_BYTES}", *options))
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", words, "weft-test", place], capture_output=True, text=True)
        if done.returncode != 0:
            pytest.skip(f"no small disk can be mounted here: {done.stderr.strip()}")
        mounted.append(place)
        return place

    yield mount_at
    for at in mounted:
        subprocess.run(["umount", "-l", at], check=True)


def free_bytes(place: Path) -> int:
    about = os.statvfs(place)
    return about.f_bavail * about.f_frsize


def fill_disk(place: Path, leave_bytes: int) -> Path:
    """A file that takes all room but so much."""
    ballast = place / "ballast"
    # Somebody else may take the last of it meanwhile.
    with contextlib.suppress(OSError), ballast.open("ab", buffering=0) as file:
        while (left := free_bytes(place) - leave_bytes) > 0:
            file.write(bytes(min(left, 1 << 20)))
    return ballast


def wait_until(met: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not met():
        assert time.monotonic() < deadline, f"{what} did not happen"
        time.sleep(0.02)


class Publisher(threading.Thread):
    """Publishes numbered messages with confirms until it is told to stop."""

    def __init__(self, node: LivingNode, queue: str) -> None:
        super().__init__(daemon=True)
        self.confirmed: list[int] = []
        self._connection, self._queue = node.connect(blocked_connection_timeout=None), queue
        self._over = threading.Event()

    def run(self) -> None:
        with contextlib.suppress(AMQPError):  # the node may die under it
            self._publish()

    def _publish(self) -> None:
        channel = self._connection.channel()
        channel.confirm_delivery()
        for number in range(1 << 30):
            if self._over.is_set():
                return
            channel.basic_publish("", self._queue, b"%08d" % number + BODY, PERSISTENT)
            self.confirmed.append(number)

    def stop(self) -> None:
        self._over.set()
        self.join(WAIT_S)
        assert not self.is_alive(), "the publisher hangs"


def test_a_full_disk_holds_publishers_and_loses_nothing(start_node: StartNode, mount: Mount) -> None:
    place = mount()
    node = start_node(place / "data")
    channel = node.channel()
    channel.queue_declare("q", durable=True)
    publisher = Publisher(node, "q")
    publisher.start()
    wait_until(lambda: len(publisher.confirmed) > 10, "the first confirms")
    ballast = fill_disk(place, FREE_BYTES)
    wait_until(lambda: "event=node.disk_alarm " in node.said, "the alarm")
    fill_disk(place, 0)
    confirmed = len(publisher.confirmed)
    # One who does not wait for confirms is told to stop.
    told: list[str] = []
    careless = node.connect(blocked_connection_timeout=None)
    careless.add_on_connection_blocked_callback(lambda *_: told.append("blocked"))
    careless.add_on_connection_unblocked_callback(lambda *_: told.append("unblocked"))
    careless.channel().basic_publish("", "q", b"careless", PERSISTENT)
    wait_until(lambda: careless.process_data_events(0.05) or told == ["blocked"], "connection.blocked")
    # Those who only read go on: nothing they need is on the disk that is full.
    assert receive(node.channel(), "q", 1, auto_ack=False)[0].body[:8] == b"%08d" % 0
    assert len(publisher.confirmed) == confirmed, "something was confirmed that no disk has"
    ballast.unlink()
    wait_until(lambda: careless.process_data_events(0.05) or told == ["blocked", "unblocked"], "connection.unblocked")
    wait_until(lambda: len(publisher.confirmed) > confirmed + 10, "publishing again")
    publisher.stop()
    wait_until(lambda: "event=node.disk_alarm_cleared" in node.said, "the all-clear")
    node.restart(kill=True)
    bodies = [each.body[:8] for each in get_all(node.channel(), "q")]
    assert b"careless" in bodies, "taken, and forgotten"
    found = [int(body) for body in bodies if body != b"careless"]
    assert found[: len(publisher.confirmed)] == publisher.confirmed


def test_a_full_disk_withholds_outcomes_and_credit_of_1_0(start_node: StartNode, mount: Mount) -> None:
    place = mount()
    node = start_node(place / "data")
    node.channel().queue_declare("q", durable=True)
    client = node.client10()
    sender = client.sender("q")
    client.send(sender, data(b"first" + BODY, durable=True))
    ballast = fill_disk(place, 0)
    sent = []
    # It may send what it has credit for; the node takes it, but promises nothing.
    while sender.credit > 0 and len(sent) < 200:
        sent.append(client.start_send(sender, data(b"%08d" % len(sent) + BODY, durable=True)))
    wait_until(lambda: client.step(0.02) or "event=node.disk_alarm " in node.said, "the alarm")
    confirmed = sum(delivery.settled for delivery in sent)
    assert confirmed < len(sent), "outcomes were sent for what no disk has"
    ballast.unlink()
    client.wait(lambda: all(delivery.settled for delivery in sent), WAIT_S)
    node.restart(kill=True)
    assert depth(node.channel(), "q") == len(sent) + 1


def test_a_node_killed_on_a_full_disk_comes_back(start_node: StartNode, mount: Mount) -> None:
    place = mount()
    node = start_node(place / "data")
    node.channel().queue_declare("q", durable=True)
    publisher = Publisher(node, "q")
    publisher.start()
    wait_until(lambda: len(publisher.confirmed) > 10, "the first confirms")
    ballast = fill_disk(place, FREE_BYTES)
    wait_until(lambda: "event=node.disk_alarm " in node.said, "the alarm")
    node.peer.kill()
    publisher.join(WAIT_S)
    ballast.unlink()
    node.kill()
    node.start()
    found = [int(each.body[:8]) for each in get_all(node.channel(), "q")]
    assert found[: len(publisher.confirmed)] == publisher.confirmed


def commit_091(node: LivingNode) -> None:
    channel = node.connect(blocked_connection_timeout=None).channel()
    channel.tx_select()
    for number in range(PARTS):
        channel.basic_publish("", "q", b"%08d" % number + BODY, PERSISTENT)
    channel.tx_commit()


def commit_10(node: LivingNode) -> None:
    client = node.client10()
    coordinator, sender = Coordinator(client), client.sender("q")
    transaction = coordinator.declare()
    for number in range(PARTS):
        client.start_send(sender, data(b"%08d" % number + BODY, durable=True), transaction=transaction)
    coordinator.commit(transaction)


@pytest.mark.parametrize("commit", [commit_091, commit_10], ids=["0-9-1", "1.0"])
def test_a_commit_waits_for_room(start_node: StartNode, mount: Mount, commit: Callable[[LivingNode], None]) -> None:
    place = mount()
    node = start_node(place / "data")
    node.channel().queue_declare("q", durable=True)
    ballast = fill_disk(place, 0)
    answered = threading.Event()

    def work() -> None:
        commit(node)
        answered.set()

    threading.Thread(target=work, daemon=True).start()
    wait_until(lambda: "event=node.disk_alarm " in node.said, "the alarm")
    assert not answered.wait(RETRY_S), "a commit was answered that no disk has"
    ballast.unlink()
    assert answered.wait(WAIT_S), "the commit was not answered when there was room"
    node.restart(kill=True)
    assert [int(each.body[:8]) for each in get_all(node.channel(), "q")] == list(range(PARTS))


def test_a_node_killed_before_there_was_room_has_none_of_a_commit(start_node: StartNode, mount: Mount) -> None:
    place = mount()
    node = start_node(place / "data")
    node.channel().queue_declare("q", durable=True)
    ballast = fill_disk(place, PARTS * len(BODY) // 2)

    def commit() -> None:
        with contextlib.suppress(AMQPError):
            commit_091(node)

    committing = threading.Thread(target=commit, daemon=True)
    committing.start()
    wait_until(lambda: "event=node.disk_alarm " in node.said, "the alarm")
    node.kill()
    committing.join(WAIT_S)
    ballast.unlink()
    node.start()
    assert depth(node.channel(), "q") == 0, "half a transaction"


def test_what_cannot_be_saved_is_not_declared(start_node: StartNode, mount: Mount) -> None:
    place = mount()
    node = start_node(place / "data")
    fill_disk(place, 0)
    declared, refused = [], ""
    # What SQLite has room for in blocks that it has already is still taken.
    for number in range(10_000):
        try:
            node.channel().queue_declare(f"q{number}", durable=True)
        except ConnectionClosed as error:
            refused = error.reply_text
            break
        declared.append(f"q{number}")
    assert refused.startswith("INTERNAL_ERROR - cannot save definitions"), refused
    assert "full" in refused, refused
    node.channel().queue_declare("transient", exclusive=True)
    (place / "ballast").unlink()
    node.channel().queue_declare("later", durable=True)
    node.restart(kill=True)
    for name in [*declared, "later"]:
        node.channel().queue_declare(name, passive=True)
    with pytest.raises(AMQPError, match="NOT_FOUND"):
        node.channel().queue_declare(f"q{len(declared)}", passive=True)


def test_a_stream_goes_on_where_the_disk_was_full(start_node: StartNode, mount: Mount) -> None:
    place = mount()
    node = start_node(place / "data")
    node.channel().queue_declare("log", durable=True, arguments={"x-queue-type": "stream"})
    publisher = Publisher(node, "log")
    publisher.start()
    wait_until(lambda: len(publisher.confirmed) > 10, "the first confirms")
    ballast = fill_disk(place, 0)
    wait_until(lambda: "event=node.disk_alarm " in node.said, "the alarm")
    confirmed = len(publisher.confirmed)
    assert [int(body[:8]) for _, body in read_all(node, confirmed)] == publisher.confirmed, "readers go on"
    assert len(publisher.confirmed) == confirmed, "something was confirmed that no disk has"
    ballast.unlink()
    wait_until(lambda: len(publisher.confirmed) > confirmed + 10, "publishing again")
    publisher.stop()
    node.restart(kill=True)
    found = read_all(node)
    assert [offset for offset, _ in found] == list(range(len(found)))
    assert [int(body[:8]) for _, body in found][: len(publisher.confirmed)] == publisher.confirmed


@pytest.mark.parametrize("durable", [True, False], ids=["durable", "transient"])
def test_a_tap_on_a_full_disk_loses_nothing(start_node: StartNode, mount: Mount, durable: bool) -> None:
    place = mount()
    node = start_node(place / "data")
    channel = node.channel()
    channel.queue_declare("log", durable=True, arguments={"x-queue-type": "stream"})
    channel.queue_declare("q", durable=durable, exclusive=False, auto_delete=False, arguments={"x-tap": "log"})
    publisher = Publisher(node, "q")
    publisher.start()
    wait_until(lambda: len(publisher.confirmed) > 10, "the first confirms")
    ballast = fill_disk(place, 0)
    wait_until(lambda: "event=node.disk_alarm " in node.said, "the alarm")
    # Whoever takes from the queue goes on.
    taken = receive(node.channel(), "q", 1)
    confirmed = len(publisher.confirmed)
    ballast.unlink()
    wait_until(lambda: len(publisher.confirmed) > confirmed + 10, "publishing again")
    publisher.stop()
    wait_until(lambda: "event=node.disk_alarm_cleared" in node.said, "the all-clear")
    taken += get_all(node.channel(), "q")
    assert [int(each.body[:8]) for each in taken] == publisher.confirmed
    wait_until(lambda: depth(node.channel(), "log") == len(publisher.confirmed), "the last copy")
    assert [int(body[:8]) for _, body in read_all(node)] == publisher.confirmed


def test_a_read_only_folder_is_one_clear_line(mount: Mount) -> None:
    place = mount("ro")
    command = [sys.executable, "-m", "weft", "up", "--listen", "127.0.0.1:0", "--data-dir", place / "data"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert str(place / "data") in done.stderr
    assert "read-only" in done.stderr.lower()


def test_a_folder_that_became_read_only_is_one_clear_line(start_node: StartNode, mount: Mount) -> None:
    place = mount()
    node = start_node(place / "data")
    node.channel().queue_declare("q", durable=True)
    publish_stored(node, "q", [b"kept"])
    node.stop()
    subprocess.run(["mount", "-o", "remount,ro", place], check=True)
    command = [sys.executable, "-m", "weft", "up", "--listen", "127.0.0.1:0", "--data-dir", place / "data"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert "read-only" in done.stderr.lower()
    subprocess.run(["mount", "-o", "remount,rw", place], check=True)
    node.start()
    assert [each.body for each in get_all(node.channel(), "q")] == [b"kept"]


def written_part(log: Path) -> int:
    """Where the zeros begin that were prepared behind what was written."""
    return len(log.read_bytes().rstrip(b"\0"))


@pytest.mark.parametrize("harm", ["cut", "garbled", "noise behind it"])
def test_a_torn_tail_is_cut_and_the_rest_served(node: LivingNode, harm: str) -> None:
    node.channel().queue_declare("q", durable=True)
    bodies = [b"%03d" % number for number in range(100)]
    for body in bodies:
        publish_stored(node, "q", [body])
    node.kill()
    log = max((node.folder / "messages").rglob("*.log"), key=lambda path: path.stat().st_mtime_ns)
    end = written_part(log)
    with log.open("r+b") as file:
        if harm == "cut":
            file.truncate(end - 5)
        else:
            file.seek(end - 20 if harm == "garbled" else end)
            file.write(os.urandom(20))
    node.start()
    found = [each.body for each in get_all(node.channel(), "q")]
    if harm == "noise behind it":
        assert found == bodies
    else:
        assert found == bodies[:-1]
        assert "cut off what was not written to its end: segment" in node.said
    publish_stored(node, "q", [b"after"])
    node.restart(kill=True)
    assert [each.body for each in get_all(node.channel(), "q")] == [b"after"]
