"""`weft up` as an operator sees it: the lines it prints, the signals it obeys, what it costs when idle."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pika
import pika.exceptions
import pytest
from pika import spec

from interop.raw091 import RawConnection

Start = Callable[..., "Running"]


class Running:
    """A `weft up` that has said it is ready."""

    def __init__(self, folder: Path, *options: str) -> None:
        command = [sys.executable, "-m", "weft", "up", "--listen", "127.0.0.1:0", "--data-dir", str(folder / "data")]
        began = time.monotonic()
        self.errors = folder / "stderr"
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=errors, text=True)
        self.lines: list[str] = []
        while not self.lines or not self.lines[-1].startswith("ready"):
            self.lines.append(self.line())
        self.ready_after_s = time.monotonic() - began

    def line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.errors.read_text()
        return line.rstrip("\n")

    @property
    def port(self) -> int:
        found = re.search(r":(\d+) \(amqp\)", "\n".join(self.lines))
        assert found is not None
        return int(found[1])

    def connect(self) -> pika.BlockingConnection:
        return pika.BlockingConnection(pika.URLParameters(f"amqp://guest:guest@127.0.0.1:{self.port}/%2F"))

    def lets_in(self, user: str, password: str) -> bool:
        with RawConnection("127.0.0.1", self.port) as connection:
            connection.start()
            connection.login(user=user, password=password)
            answer = connection.read()
            return answer is not None and isinstance(answer.method, spec.Connection.Tune)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Running] = []

    def one(*options: str) -> Running:
        started.append(Running(tmp_path, *options))
        return started[-1]

    yield one
    for running in started:
        if running.process.poll() is None:
            running.process.kill()
        running.process.wait()
        if running.process.stdout is not None:
            running.process.stdout.close()


def test_it_says_what_it_is_where_it_listens_and_where_its_data_is(start: Start, tmp_path: Path) -> None:
    config = tmp_path / "http.toml"
    config.write_text('[http]\naddress = "127.0.0.1:0"\n')
    running = start("--name", "edge", "--config", str(config))
    assert running.lines[0].startswith("weft edge version ")
    assert re.fullmatch(r"listening on 127\.0\.0\.1:\d+ \(amqp\)", running.lines[1])
    assert re.fullmatch(r"management on http://127\.0\.0\.1:[1-9]\d*", running.lines[2])
    assert running.lines[3] == f"data in {tmp_path / 'data'}"
    assert running.lines[4].startswith("ready")
    assert running.ready_after_s < 5  # under a second on a machine that does nothing else


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_drains_and_ends_with_zero(start: Start, number: int) -> None:
    running = start()
    connection = running.connect()
    running.process.send_signal(number)
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as caught:
        connection.process_data_events(time_limit=10)
    assert caught.value.reply_code == 320
    assert running.process.wait(30) == 0


def test_the_same_data_folder_serves_one_node_only(start: Start, tmp_path: Path) -> None:
    start()
    command = [sys.executable, "-m", "weft", "up", "--listen", "127.0.0.1:0", "--data-dir", str(tmp_path / "data")]
    second = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert second.returncode == 2
    assert second.stderr == f"weft up: data folder {tmp_path / 'data'} belongs to another node that is running\n"


def test_durable_definitions_outlive_the_process(start: Start) -> None:
    running = start()
    connection = running.connect()
    connection.channel().queue_declare("kept", durable=True)
    connection.close()
    assert running.stop() == 0
    connection = start().connect()
    connection.channel().queue_declare("kept", passive=True)
    connection.close()


def write_users(path: Path, password: str) -> None:
    path.write_text(
        f"[[users]]\nname = 'ann'\npassword = '{password}'\n\n"
        "[[permissions]]\nuser = 'ann'\nconfigure = '.*'\nwrite = '.*'\nread = '.*'\n"
    )


def test_sighup_reads_users_again(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "edge.toml"
    write_users(file, "first")
    running = start("--config", str(file))
    assert running.lets_in("ann", "first")

    write_users(file, "second")
    running.process.send_signal(signal.SIGHUP)
    assert running.line() == f"reloaded {file}"
    assert running.lets_in("ann", "second")
    assert not running.lets_in("ann", "first")

    file.write_text("")
    running.process.send_signal(signal.SIGHUP)
    assert running.line() == f"reloaded {file}"
    assert not running.lets_in("ann", "second")


def test_a_wrong_file_at_sighup_changes_nothing(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "edge.toml"
    write_users(file, "first")
    running = start("--config", str(file))
    file.write_text("[[users]]\n")
    running.process.send_signal(signal.SIGHUP)
    wait_for(lambda: "not reloaded" in running.errors.read_text())
    assert f"weft up: not reloaded: {file}:1: users.name is missing" in running.errors.read_text()
    assert running.lets_in("ann", "first")


def test_a_folder_under_another_name_is_told(start: Start) -> None:
    assert start("--name", "first").stop() == 0
    for said in (["it was called first before: what other nodes keep for it, they keep under that name"], []):
        running = start("--name", "second")
        assert running.lines[3:-1] == said
        assert running.stop() == 0


def test_sighup_says_what_waits_for_a_restart(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "edge.toml"
    file.write_text("[events]\nstatistics_s = 10\n")
    running = start("--config", str(file), "--name", "edge")
    file.write_text("[node]\nname = 'other'\n[events]\nstatistics_s = 20\n[settings]\nguest = false\n")
    running.process.send_signal(signal.SIGHUP)
    assert running.line() == f"reloaded {file}"
    assert running.line() == "changed there, but not before a restart: settings, statistics_s"


def test_sighup_without_a_file_says_so(start: Start) -> None:
    running = start()
    running.process.send_signal(signal.SIGHUP)
    assert running.line() == "nothing to reload: there is no configuration file"
    assert running.stop() == 0


def test_a_service_manager_is_told(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(10)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "200000")
        monkeypatch.delenv("WATCHDOG_PID", raising=False)
        running = start()

        def until(begin: str) -> list[str]:
            told: list[str] = []
            while not told or not told[-1].startswith(begin):
                told.append(manager.recv(1000).decode())
            return told

        assert until("READY=1")[-1] == "READY=1\nSTATUS=serving"
        assert set(until("WATCHDOG=1")) == {"WATCHDOG=1"}
        os.kill(running.process.pid, signal.SIGSTOP)  # a loop that hangs says nothing
        manager.settimeout(0.3)
        with pytest.raises(TimeoutError):
            until("never")
        manager.settimeout(10)
        os.kill(running.process.pid, signal.SIGCONT)
        running.process.send_signal(signal.SIGHUP)
        assert until("RELOADING=1")[-1].startswith("RELOADING=1\nMONOTONIC_USEC=")
        assert until("READY=1")[-1] == "READY=1\nSTATUS=serving"
        assert running.stop() == 0
        assert until("STOPPING=1")[-1] == "STOPPING=1\nSTATUS=draining"


def test_a_service_manager_that_is_not_there_is_no_matter(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", "@nobody-listens-here")
    monkeypatch.setenv("WATCHDOG_USEC", "soon")
    assert start().stop() == 0


def test_sigusr1_writes_the_state(start: Start) -> None:
    running = start("--name", "edge")
    connection = running.connect()
    connection.channel().queue_declare("seen")
    running.process.send_signal(signal.SIGUSR1)
    wait_for(lambda: running.errors.read_text().endswith("\n"))
    state = json.loads(running.errors.read_text())
    assert state["node"] == "edge"
    assert len(state["connections"]) == 1
    assert [queue["name"] for queue in state["queues"]] == ["seen"]
    assert state["stats"]["connections"] == 1
    connection.close()


def test_an_idle_node_is_small_and_asleep(start: Start) -> None:
    running = start()
    status = Path(f"/proc/{running.process.pid}/status").read_text()
    resident_kib = int(re.search(r"VmRSS:\s+(\d+) kB", status)[1])  # type: ignore[index]
    assert resident_kib < 50 * 1024
    cpu = _cpu_ticks(running.process.pid)
    time.sleep(1)  # what is measured is that nothing happens in this time
    assert _cpu_ticks(running.process.pid) - cpu <= 1


def test_a_closed_standard_output_does_not_end_it(start: Start) -> None:
    running = start()
    assert running.process.stdout is not None
    running.process.stdout.close()
    assert running.stop() == 0


def _cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def wait_for(condition: Callable[[], bool]) -> None:
    """A file has no event to wait for; the test's time limit ends what never comes."""
    while not condition():
        os.sched_yield()
