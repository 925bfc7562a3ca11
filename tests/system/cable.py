"""A cable between two nodes of this machine that can be pulled and put back.

Owns a listener and a thread. Whoever connects to it is connected to the port behind it; while the cable is cut not a
byte passes, in either direction, nor the end of a connection: each side finds out by itself, as it would with a network
that is gone. What was on its way passes when the cable is back, if its connection is still there.
It must never look into the bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Self

HOST = "127.0.0.1"
CHUNK_BYTES = 65_536


class Cable:
    """Leads from a port of its own to that of a node."""

    def __init__(self, port: int) -> None:
        self.port = 0
        self.connections = 0
        """How often somebody was connected to the other end."""
        self._behind = port
        self._loop = asyncio.new_event_loop()
        self._whole = asyncio.Event()
        self._whole.set()
        self._ends = asyncio.Event()
        self._listens = threading.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),))

    def __enter__(self) -> Self:
        self._thread.start()
        self._listens.wait()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._loop.call_soon_threadsafe(self._ends.set)
        self._thread.join()
        self._loop.close()

    def cut(self) -> None:
        """From now on nothing passes."""
        self._loop.call_soon_threadsafe(self._whole.clear)

    def heal(self) -> None:
        """It is as if nothing had been."""
        self._loop.call_soon_threadsafe(self._whole.set)

    async def _serve(self) -> None:
        tasks: set[asyncio.Task[None]] = set()

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = self._loop.create_task(self._join(reader, writer))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        server = await asyncio.start_server(accept, HOST, 0)
        self.port = server.sockets[0].getsockname()[1]
        self._listens.set()
        await self._ends.wait()
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._whole.wait()
        writers = [writer]
        try:
            behind_reader, behind_writer = await asyncio.open_connection(HOST, self._behind)
            writers.append(behind_writer)
            self.connections += 1
            await asyncio.gather(self._carry(reader, behind_writer), self._carry(behind_reader, writer))
        except OSError:
            pass  # nobody listens there now, or one side is gone: so is the connection
        finally:
            for one in writers:
                one.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(CHUNK_BYTES):
            await self._whole.wait()
            writer.write(data)
            await writer.drain()
        await self._whole.wait()
        with contextlib.suppress(OSError):
            writer.write_eof()
