"""The loop closes: a node tells its statistics, Spark foresees what its queue will need, and instances come and go.

Owns the story and the processes it needs: a node, `weft scale` with a real service, and `weft pipeline`. It publishes
a load that grows and ends; nobody but the pipeline decides. It must never leave a process or a folder behind.
Every step waits for a line that a process says, and whatever does not come ends the story with its reason.
"""

from __future__ import annotations

import asyncio
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import weft
from weft.client.management import Management

SERVICE = "user.lifecycle"
STATISTICS = "weft.statistics"
WAIT_S = 120.0
CONFIG = "[events]\nstatistics_s = 1\n"
SERVICES = """
[services."user.lifecycle"]
command = ["{python}", "{worker}"]
min = 1
max = 4
messages_each = 10000
down_s = 5
"""
WORKER = """
import asyncio, os, weft
async def main():
    async with weft.connect(os.environ["WEFT_URL"]) as fabric:
        @fabric.service(os.environ["WEFT_SERVICE"], concurrency=1)
        async def handle(message):
            await asyncio.sleep(0.03)
        await fabric.serve()
asyncio.run(main())
"""


def say(line: str) -> None:
    """One line of the story."""
    print(line, flush=True)


class Process:
    """A `weft` command; its lines can be waited for."""

    def __init__(self, *words: str) -> None:
        self.name = words[0]
        command = [sys.executable, "-m", "weft", *words]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self.process.stdout or ():
            self._lines.put(line.rstrip())
        self._lines.put(None)

    def until(self, *words: str, tell: bool = False) -> str:
        """The next line that has one of these words in it."""
        limit, said = time.monotonic() + WAIT_S, []
        while True:
            try:
                line = self._lines.get(timeout=max(limit - time.monotonic(), 0.1))
            except queue.Empty:
                line = None
            if line is None:
                raise SystemExit(f"weft {self.name} did not say {' or '.join(words)}; it said:\n" + "\n".join(said))
            said.append(line)
            if any(word in line for word in words):
                if tell:
                    say(f"    {line}")
                return line

    def end(self) -> None:
        """End it as an operator would."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


async def prepare(fabric: weft.Fabric) -> None:
    """A stream that keeps what queues say of themselves."""
    management = Management(fabric)
    await management.create("queue", SERVICE, {"durable": True})
    await management.create("queue", STATISTICS, {"durable": True, "arguments": {"x-queue-type": "stream"}})
    binding = {"source": "weft.events", "destination": STATISTICS, "routing_key": "queue.statistics.#"}
    await management.create("binding", "", binding)


async def load(fabric: weft.Fabric, stop: asyncio.Event) -> int:
    """Requests at a rate that grows from 10 to 100 a second; how many were sent."""
    sent, began = 0, time.monotonic()
    while not stop.is_set():
        passed_s = time.monotonic() - began
        await fabric.send_many(SERVICE, [b"a user was born"] * max(1, int((10 + min(passed_s * 2, 90)) / 5)))
        sent += 1
        await asyncio.sleep(0.2)
    return sent


async def story(folder: Path, processes: list[Process]) -> None:
    """The whole of it."""
    (folder / "node.toml").write_text(CONFIG)
    (folder / "worker.py").write_text(WORKER)
    (folder / "services.toml").write_text(SERVICES.format(python=sys.executable, worker=folder / "worker.py"))
    node = Process("up", "--name", "edge", "--listen", "127.0.0.1:0", "--data-dir", str(folder / "edge"),
                   "--config", str(folder / "node.toml"))  # fmt: skip
    processes.append(node)
    port = node.until("listening on").split(":")[1].split()[0]
    node.until("ready")
    url = f"amqp://127.0.0.1:{port}"
    async with weft.connect(url) as fabric:
        await prepare(fabric)
        scale = Process("scale", str(folder / "services.toml"), "--url", url)
        processes.append(scale)
        say("A service with one instance, which does some thirty requests a second. Now more and more come:")
        await asyncio.to_thread(scale.until, "0 → 1", tell=True)
        stop = asyncio.Event()
        loading = asyncio.create_task(load(fabric, stop))
        say("    (Spark starts: a stream of the node's own statistics goes in, advice comes out)")
        pipeline = Process("pipeline", "run", "--url", url, "--streams", STATISTICS, "--jobs", "capacity",
                           "--lake", str(folder / "lake"), "--trigger", "1", "--no-bronze")  # fmt: skip
        processes.append(pipeline)
        await asyncio.to_thread(scale.until, "1 → 2", "1 → 3", "1 → 4", tell=True)
        stop.set()
        await loading
        say("The load ends, and what waited is worked off:")
        await asyncio.to_thread(scale.until, "→ 1", "→ 2", "→ 3", tell=True)


def main() -> None:
    """Tell the story, and leave nothing behind."""
    processes: list[Process] = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            asyncio.run(story(Path(folder), processes))
        finally:
            for process in reversed(processes):
                process.end()
    say("Instances came because Spark foresaw the need, and went when it was over.")


if __name__ == "__main__":
    main()
