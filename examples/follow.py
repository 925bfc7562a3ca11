"""Follow what is measured elsewhere: an ocean observatory with a buoy and three sites, and readers who come and go.

Owns the story and four nodes: a buoy, a ship that relays, a shore station and a campus. Measurements are published
where they are taken; whoever follows a kind of them, at any site, gets it, and what nobody follows does not travel. It
must never leave a process or a folder behind. Run it: `python examples/follow.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import tempfile
from pathlib import Path

import weft
from weft.client.management import Management

SITES = ("ship", "shore", "campus")
EXCHANGE = "observations"
WEFT = [sys.executable, "-m", "weft"]
WAIT_S = 30.0


def start(site: str, folder: Path) -> tuple[subprocess.Popen[str], str]:
    """A node of its own process, and its URL."""
    command = [*WEFT, "up", "--name", site, "--listen", "127.0.0.1:0", "--data-dir", str(folder / site)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    url = ""
    for line in process.stdout or ():
        if "listening on" in line:
            url = "amqp://127.0.0.1:" + line.split("127.0.0.1:")[1].split()[0]
        if line.startswith("ready"):
            return process, url
    raise SystemExit(f"{site} did not start")


async def measure(site: weft.Fabric, kind: str, value: float) -> bool:
    """Publish a measurement; whether anybody, anywhere, follows it."""
    try:
        await site.send(f"/exchanges/{EXCHANGE}/{kind}", {"value": value})
    except weft.Undelivered:
        return False
    return True


async def follow(sites: dict[str, weft.Fabric], buoy: weft.Fabric, kind: str) -> None:
    """Readers at three sites follow a kind of measurement until each has had one; then they stop."""
    async with contextlib.AsyncExitStack() as following, asyncio.timeout(WAIT_S):
        first = {}
        for name, site in sites.items():
            receiver = await following.enter_async_context(site.receive(f"/exchanges/{EXCHANGE}/{kind}.%23"))
            first[name] = asyncio.create_task(anext(receiver))
        # That somebody follows takes a moment from site to site; the buoy just goes on measuring.
        while not all(task.done() for task in first.values()):
            await measure(buoy, f"{kind}.north", 11.3)
            await asyncio.sleep(0.02)
        for name, task in first.items():
            print(f"{name} follows {kind}.#: {task.result().body['value']} °C")
        print(f"nobody follows salinity: {'sent' if await measure(buoy, 'salinity.north', 35.1) else 'not sent'}")


async def story(urls: dict[str, str]) -> None:
    """The temperature of the sea, for whoever wants it."""
    async with contextlib.AsyncExitStack() as connections:
        at = {name: await connections.enter_async_context(weft.connect(url)) for name, url in urls.items()}
        buoy = at.pop("buoy")
        await follow(at, buoy, "temperature")
        async with asyncio.timeout(WAIT_S):
            is_followed = True
            while is_followed:
                await asyncio.sleep(0.02)
                is_followed = await measure(buoy, "temperature.north", 11.4)
        print("they follow no more: nothing travels")


async def prepare(urls: dict[str, str]) -> None:
    """The same exchange everywhere, and the ship as the relay between the others."""
    for url in urls.values():
        async with weft.connect(url) as fabric:
            await Management(fabric).create("exchange", EXCHANGE, {"type": "topic", "durable": True})
    for site in urls.keys() - {"ship"}:
        command = [*WEFT, "relay", "create", urls["ship"], urls[site], "--exchange", EXCHANGE]
        made = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
        if made.returncode:
            raise SystemExit(made.stderr)


def main() -> None:
    """Start the sites, tell the story, end them."""
    processes: list[subprocess.Popen[str]] = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            urls = {}
            for site in ("buoy", *SITES):
                process, urls[site] = start(site, Path(folder))
                processes.append(process)
            asyncio.run(prepare(urls))
            asyncio.run(story(urls))
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                process.communicate()


if __name__ == "__main__":
    main()
