"""A process that has imported what Spark's Python processes import, and lets copies of itself do their work.

Spark starts a Python process for each streaming query and for each kind of work on a source. Nearly all of their start
is importing. This one does that once, while the JVM starts; `weft._spark_python` asks it for copies, with a
command, surroundings and files, and is told how each ended. It ends with the program that started it, whose end it sees
on its standard input.
It must never have a second thread, which a copy would lack; one that has is no use, and ends at once.
Why, and what it saves: docs/decisions/0073-spark-forks-what-is-ready.md.
"""

from __future__ import annotations

import gc
import importlib
import os
import runpy
import selectors
import shutil
import signal
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass, field

from weft._spark_python import NUMBER_BYTES

IMPORTED = (
    "pyspark.daemon",
    "pyspark.worker",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.plan_data_source_read",
    "weft.spark.source",
    "weft.spark.wire",
    "weft.spark.writer",
)
"""Modules whose own imports are those of Spark's processes, and what the source imports once it knows its options."""

REQUEST_BYTES_MAX = 4 << 20
"""Arguments and environment: twice what Linux gives to a process as a rule."""
REQUEST_TIMEOUT_S = 10.0
"""A request is a few writes of a process on this machine; one that hangs must not keep the others waiting."""

OWNER = 0
"""Standard input: a pipe that the program which started this one holds, and nobody else."""
STANDARD = (0, 1, 2)

Files = list[int]
Request = tuple[list[str], dict[str, str], str]
"""Arguments as Python takes them, environment, working directory."""


@dataclass
class Nursery:
    """Who listens, and the copies that run."""

    listener: socket.socket
    copies: dict[int, socket.socket] = field(default_factory=dict)
    """Who waits for the end of a process, by its number."""
    _ready: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)

    def serve(self) -> tuple[Request, Files] | None:
        """Until the owner's end: nothing. In a copy: what it is to do."""
        woken, wakes = socket.socketpair()
        woken.setblocking(False)
        wakes.setblocking(False)
        signal.set_wakeup_fd(wakes.fileno())
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for source in (OWNER, woken, self.listener):
            self._ready.register(source, selectors.EVENT_READ)
        while True:
            for key, _ in self._ready.select():
                if key.fileobj == OWNER:
                    return None
                if key.fileobj is woken:
                    woken.recv(4096)
                    self._tell_ends()
                elif key.fileobj is not self.listener:
                    self._abandoned(key.data)
                elif (request := self._accept()) is not None:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    self._ready.close()
                    for own in (woken, wakes, self.listener, *self.copies.values()):
                        own.close()
                    return request

    def _accept(self) -> tuple[Request, Files] | None:
        """Take one request; returns it in the copy, and nothing here."""
        asked, _ = self.listener.accept()
        try:
            found = _received(asked)
        except (OSError, ValueError, EOFError):
            asked.close()
            return None
        pid = os.fork()
        if pid == 0:
            asked.close()
            return found
        for number in found[1]:
            os.close(number)
        self.copies[pid] = asked
        self._ready.register(asked, selectors.EVENT_READ, pid)
        _send(asked, b"!")
        return None

    def _tell_ends(self) -> None:
        """Tell those who wait how their processes ended."""
        while self.copies:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            code = os.waitstatus_to_exitcode(status)
            asked = self.copies.pop(pid)
            if asked.fileno() >= 0:
                _send(asked, (code if code >= 0 else 128 - code).to_bytes(NUMBER_BYTES, "big"))
                self._forget(asked)

    def _abandoned(self, pid: int) -> None:
        """Whoever asked is gone: Spark kills the process that it started when it needs it no more, so the copy goes."""
        asked = self.copies.get(pid)
        if asked is not None:
            self._forget(asked)
            os.kill(pid, signal.SIGTERM)

    def _forget(self, asked: socket.socket) -> None:
        self._ready.unregister(asked)
        asked.close()


def _received(asked: socket.socket) -> tuple[Request, Files]:
    asked.settimeout(REQUEST_TIMEOUT_S)
    head, files, _, _ = socket.recv_fds(asked, NUMBER_BYTES, len(STANDARD))
    size = int.from_bytes(head, "big")
    if len(head) < NUMBER_BYTES or len(files) != len(STANDARD) or size > REQUEST_BYTES_MAX:
        raise ValueError("this is no request")
    read = bytearray()
    while len(read) < size:
        part = asked.recv(size - len(read))
        if not part:
            raise EOFError
        read += part
    folder, count, *words = bytes(read).split(b"\0")
    arguments, surroundings = words[: int(count)], words[int(count) :]
    named = (word.partition(b"=") for word in surroundings)
    environment = {os.fsdecode(name): os.fsdecode(value) for name, _, value in named}
    return ([os.fsdecode(word) for word in arguments], environment, os.fsdecode(folder)), files


def _send(asked: socket.socket, data: bytes) -> None:
    """To somebody who may be gone, which is seen when the socket is looked at next."""
    with suppress(OSError):
        asked.send(data)


def become(request: Request, files: Files) -> None:
    """Be the process that was asked for, as if Python had just started: until its work is done."""
    arguments, environment, folder = request
    for number, own in zip(files, STANDARD, strict=True):
        os.dup2(number, own)
        os.close(number)
    for stream in (sys.stdout, sys.stderr):
        # As PYTHONUNBUFFERED has it, which Spark asks for.
        stream.reconfigure(write_through=True)  # type: ignore[union-attr]
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    asked = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = dict.fromkeys([folder, *asked, *sys.path])
    module = arguments[1]
    sys.argv = arguments[1:]
    # It was imported by another's import, and is the program now.
    sys.modules.pop(module, None)
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def main(listener: int, folder: str) -> None:
    """Import, then serve. Whoever asks meanwhile waits for it; the folder is the owner's, and goes with it."""
    # What ends the owner at a terminal ends Spark, and that ends what it started.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in IMPORTED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    if len(os.listdir("/proc/self/task")) > 1:
        return
    request = Nursery(socket.socket(fileno=listener)).serve()
    if request is None:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        become(*request)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
