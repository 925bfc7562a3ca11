"""`weft top`: a node, its links and its queues, live in the terminal; with `--all`, every node that can be found.

Owns asking, the keys and when the screen is drawn anew (`screen` draws it). Everything is asked over AMQP.
It must never ask for more rows than fit on the screen, leave a terminal other than it was, nor end because a node does
not answer: that is when somebody looks.
Rule: `rich` draws it and is an extra of its own: `pip install 'weft[top]'`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack

from weft.cli import remote
from weft.cli.map import crawl
from weft.cli.options import seconds
from weft.cli.screen import LINKS_MAX, NODES_MAX, SORTS, Screen
from weft.client import connect
from weft.client.management import Management, Row
from weft.model.errors import ConfigError, WeftError

PAUSE_S = 2.0
TIMEOUT_S = 3.0
"""What a node has for an answer before the screen says that there is none."""
END = "q"
KEYS = {sort[0]: sort for sort in SORTS}
"""The first letter of what is sorted by."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    remote.add_node(parser)
    parser.add_argument("--sort", choices=tuple(SORTS), default="ready", help="which queues are shown first")
    parser.add_argument("--pause", type=seconds, default=PAUSE_S, metavar="S", help="seconds between two looks")
    parser.add_argument("--all", action="store_true", help="a line for each node that this one leads to")
    parser.add_argument("--once", action="store_true", help="look twice, print, end")


def run(options: argparse.Namespace) -> int:
    """Draw until it is interrupted."""
    try:
        import rich  # noqa: F401 - only to say early what is missing
    except ImportError:
        raise ConfigError("this needs rich: pip install 'weft[top]'") from None
    try:
        return asyncio.run(_run(options))
    except KeyboardInterrupt:
        return 0


async def _run(options: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.live import Live

    console, screen = Console(), Screen(options.sort)
    async with AsyncExitStack() as life:
        fabric = await life.enter_async_context(connect(options.url, **remote.patience(options)))
        view = View(Management(fabric, timeout_s=TIMEOUT_S), screen)
        if options.all:
            await view.find(options.url, life)
        await view.look(console.height)
        if options.once:
            await asyncio.sleep(min(options.pause, 1.0))
            await view.look(console.height)
            console.print(screen.draw())
            return 0
        logging.getLogger("weft.client").setLevel(logging.ERROR)  # the screen itself tells of a node that is gone
        with _pressed() as keys, Live(screen.draw(), console=console, screen=True, auto_refresh=False) as live:
            async for key in _moments(keys, options.pause):
                if key == END:
                    return 0
                screen.sort = KEYS.get(key, screen.sort)
                try:
                    await view.look(console.height)
                    screen.trouble = ""
                except WeftError as error:
                    screen.trouble = str(error)
                live.update(screen.draw(), refresh=True)
    return 0


async def _moments(keys: asyncio.Queue[str], pause_s: float) -> AsyncIterator[str]:
    """Each key, or nothing after each pause."""
    while True:
        try:
            async with asyncio.timeout(pause_s):
                key = await keys.get()
        except TimeoutError:
            key = ""
        yield key


@contextlib.contextmanager
def _pressed() -> Iterator[asyncio.Queue[str]]:
    """Keys as they are pressed, if there is a terminal; a change of its size is nothing pressed, and its end is the
    key for that.
    """
    loop, keys, stdin = asyncio.get_running_loop(), asyncio.Queue[str](), sys.stdin.fileno()
    loop.add_signal_handler(signal.SIGWINCH, keys.put_nowait, "")
    loop.add_signal_handler(signal.SIGTERM, keys.put_nowait, END)
    if not os.isatty(stdin):
        yield keys
        return
    import termios
    import tty

    def read() -> None:
        text = os.read(stdin, 1).decode(errors="replace")
        if not text:
            loop.remove_reader(stdin)
        keys.put_nowait(text or END)

    before = termios.tcgetattr(stdin)
    tty.setcbreak(stdin)
    loop.add_reader(stdin, read)
    try:
        yield keys
    finally:
        loop.remove_reader(stdin)
        termios.tcsetattr(stdin, termios.TCSADRAIN, before)


class View:
    """Asks for what is on the screen."""

    def __init__(self, management: Management, screen: Screen) -> None:
        self._management = management
        self._screen = screen
        self._others: dict[str, Management] = {}

    async def find(self, url: str | None, life: AsyncExitStack) -> None:
        """Every node that this one leads to."""
        own = (await self._management.read("node"))["name"]
        found = (await crawl(url)).nodes
        for name, facts in sorted(found.items())[:NODES_MAX]:
            if name != own and "error" not in facts:
                with contextlib.suppress(WeftError):
                    fabric = await life.enter_async_context(connect(facts["url"], timeout_s=TIMEOUT_S, patient=False))
                    self._others[name] = Management(fabric, timeout_s=TIMEOUT_S)

    async def look(self, height: int) -> None:
        """Ask the node, and the others for their own rows."""
        screen, management = self._screen, self._management
        node = await management.read("node")
        links = await management.query("uplink", count=LINKS_MAX)
        routes = await management.query("route", columns=("link", "carried", "round_trip_p99_us")) if links else []
        others = await asyncio.gather(*(_row(name, other) for name, other in self._others.items()))
        rows = screen.queues_max(height, len(links), len(others))
        queues = await management.query("queue", sort=SORTS[screen.sort], descending=True, count=rows)
        screen.show(node, queues, links, routes, others)


async def _row(name: str, management: Management) -> Row:
    """A node's row, or what is wrong with it."""
    try:
        return await management.read("node")
    except WeftError as error:
        return {"name": name, "trouble": str(error)}
