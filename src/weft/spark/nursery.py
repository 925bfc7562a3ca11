"""The process from which Spark's Python processes are forked: started with a session, ended with its program.

Owns the folder in which it is found: a socket, and a program in Python's place that asks there. Nothing comes in; the
path of that program goes out, for Spark to call.
It must never be needed: without it the same program starts Python.
The two programs are `weft._spark_nursery` and `weft._spark_python`; the reasons, in
docs/decisions/0073-spark-forks-what-is-ready.md.
"""

from __future__ import annotations

import functools
import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from weft import _spark_python

PREFIX = "weft-python-"
"""Of the folders' names; the number of the program follows that a folder belongs to."""
SOCKET = "socket"

WAITING_MAX = 64
"""Processes that Spark may want before the first is ready; it starts one per kind of work and query."""

SURROUNDINGS = {
    # One thread only: neither numpy's nor those of a memory pool that pyarrow has beside its own.
    "OMP_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    # As Spark tells its processes; some of it is read when a module is imported.
    "SPARK_PYTHON_RUNTIME": "PYTHON_WORKER",
    "PYTHONUNBUFFERED": "YES",
}

VERSION = "import sys; print('%d.%d' % sys.version_info[:2])"
PROGRAM = """\
#!/bin/sh
case "$1$2" in
-m*) exec {asking} "$@" ;;
"-c{question}") echo {version} ;;
*) exec {python} "$@" ;;
esac
"""
"""Modules are run by a copy. Which version this is Spark asks several times for each query."""


@functools.cache
def ready_python() -> str | None:
    """A program to be called in Python's place, or nothing where a process cannot be forked this way."""
    if sys.platform != "linux":
        return None
    try:
        sweep(Path(tempfile.gettempdir()))
        program, process = start(Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-")))
    except OSError:
        return None
    _kept.append(process)
    return str(program)


_kept: list[subprocess.Popen[bytes]] = []
"""Its standard input must stay open: it ends when that is closed, however this program ends."""


def sweep(place: Path) -> None:
    """Remove this user's folders whose program was killed, and whose process could not see to it any more.

    A number tells nothing of a program in another container, but a socket that answers does.
    """
    for folder in place.glob(f"{PREFIX}*-*"):
        owner = folder.name.removeprefix(PREFIX).partition("-")[0]
        with suppress(OSError), socket.socket(socket.AF_UNIX) as asked:
            if folder.lstat().st_uid != os.getuid() or Path("/proc", owner).exists():
                continue
            asked.setblocking(False)
            try:
                asked.connect(str(folder / SOCKET))
            except ConnectionRefusedError:
                shutil.rmtree(folder)


def start(folder: Path) -> tuple[Path, subprocess.Popen[bytes]]:
    """Fill a folder; returns the program in it, and the process that it asks."""
    path, program = folder / SOCKET, folder / "python"
    asking = shlex.join([sys.executable, "-IS", _spark_python.__file__, str(path)])
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    text = PROGRAM.format(asking=asking, python=shlex.quote(sys.executable), question=VERSION, version=version)
    program.write_text(text, encoding="utf-8")
    program.chmod(0o700)
    with socket.socket(socket.AF_UNIX) as listener:
        # Whoever asks before the imports are done waits in line.
        listener.bind(str(path))
        listener.listen(WAITING_MAX)
        command = [sys.executable, "-m", "weft._spark_nursery", str(listener.fileno()), str(folder)]
        surroundings = {"PYTHONHASHSEED": "0", **os.environ, **SURROUNDINGS}
        process = subprocess.Popen(  # noqa: S603 - this very program
            command, stdin=subprocess.PIPE, pass_fds=[listener.fileno()], env=surroundings
        )
        return program, process
