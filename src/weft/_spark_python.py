"""What stands in Python's place for Spark's processes: it asks for one that has everything imported already.

Owns one request. The arguments that Spark gave to Python come in, after the path of a socket; this process's files and
surroundings go to whoever listens there (`weft._spark_nursery`), which lets a copy of itself do the work. Where nobody
listens, the real Python does.
It must never import anything that takes time: it runs as a plain file, without site-packages, before each process.
Why: docs/decisions/0073-spark-forks-what-is-ready.md.
"""

from __future__ import annotations

import _socket
import os
import sys

NUMBER_BYTES = 4
"""Of a length, of a file's number, and of a process's end."""


def end_of_copy(socket_path: str, arguments: list[str]) -> int:
    """Let a copy run with these arguments; returns how it ended. Raises OSError when there is none."""
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    connection.connect(socket_path)
    words = [os.getcwdb(), str(len(arguments)).encode(), *map(os.fsencode, arguments)]
    request = b"\0".join(words + [name + b"=" + value for name, value in os.environb.items()])
    files = b"".join(number.to_bytes(NUMBER_BYTES, sys.byteorder) for number in (0, 1, 2))
    size = len(request).to_bytes(NUMBER_BYTES, "big")
    connection.sendmsg([size], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, files)])
    connection.sendall(request)
    if not connection.recv(1):
        raise ConnectionResetError
    # From here on the work is done elsewhere: whatever happens, it is not to be done twice.
    end = connection.recv(NUMBER_BYTES)
    return int.from_bytes(end, "big") if end else 1


if __name__ == "__main__":
    try:
        code = end_of_copy(sys.argv[1], sys.argv[2:])
    except OSError:
        os.execv(sys.executable, [sys.executable, *sys.argv[2:]])  # noqa: S606 - what Spark asked for
    sys.exit(code)
