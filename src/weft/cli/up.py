"""`weft up`: a node in the foreground until a signal ends it.

Owns the life of the process: options over configuration file, the lines it prints, the signals it obeys. The node
itself is `weft.server`.
It must never print a traceback for what an operator can cause.
Rule: SIGTERM and SIGINT drain and end with 0, SIGHUP reads users and certificates again, SIGUSR1 writes the node's
state.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from weft import __version__
from weft._kernel import keep_buffers
from weft.cli.checked import load_checked
from weft.cli.supervisor import Supervisor
from weft.config import Configuration, Listen, node_name_default, parse, validate_node_name
from weft.config.load import PORT
from weft.management.events import LOG as EVENTS
from weft.management.lines import LineFormatter
from weft.model.errors import WeftError
from weft.net.endpoint import Endpoint, parse_endpoint
from weft.node.folder import Taken
from weft.server import Node

LISTEN_DEFAULT = Endpoint("127.0.0.1", PORT)
"""This machine only: a node that opens itself to a network does so because someone wrote it down."""

GATEWAY_VARIABLE = "WEFT_GATEWAY"
"""URLs of gateways, with commas between them: the one thing a node in a container must be told (deploy/README.md)."""
GATEWAY = "gateway"
STANDBY_PAUSE_S = 0.05
"""Between two looks at the folder of a node that runs: a small part of what opening it takes."""
UNKNOWN_MAX = 10
"""Queues that the definitions do not know, by number, in one line."""
RELOADED = frozenset({"users", "vhosts", "permissions", "policies", "links", "routes"})
"""What of a configuration file a node takes over while it runs."""
GC_THRESHOLDS = (250, 2, 10_000)
"""How many new objects the collector looks at once (some microseconds), how often a second time, and when at all that
there are: after five million more. Hardly anything that a node makes is garbage in a circle, and fifty thousand queues
take the collector fifty milliseconds.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("--name", metavar="NAME", help="name of the node (default: the host's name)")
    parser.add_argument(
        "--listen",
        metavar="HOST:PORT",
        action="append",
        default=[],
        help=f"where to listen; may be repeated; port 0 takes a free one (default: {LISTEN_DEFAULT})",
    )
    parser.add_argument("--data-dir", metavar="DIR", help="folder of this node alone (default: by its name)")
    parser.add_argument("--config", metavar="FILE", help="configuration in TOML (see weft config)")
    parser.add_argument(
        "--standby",
        action="store_true",
        help="wait while another node has the data folder, and serve when it has ended",
    )
    parser.add_argument(
        "--forget",
        metavar="NUMBER",
        type=int,
        action="append",
        default=[],
        help="drop messages that were left alone under this number; may be repeated",
    )


def run(options: argparse.Namespace) -> int:
    """Run the node until it is told to end."""
    configuration = configure(options)
    _allow_many_sockets()
    keep_buffers()
    _log_lines()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        node = Node(configuration=configuration, forget=options.forget)
        return runner.run(_serve(node, configuration, options))


def configure(options: argparse.Namespace) -> Configuration:
    """The file's configuration with the command line's over it, and defaults below."""
    configuration = joined(load_checked(Path(options.config)) if options.config else Configuration())
    name = validate_node_name(options.name) if options.name is not None else configuration.name or node_name_default()
    listen = configuration.listen
    if options.listen:
        listen = tuple(Listen(parse_endpoint(text, PORT)) for text in options.listen)
    data_dir = Path(options.data_dir) if options.data_dir else configuration.data_dir or _data_home() / name
    return replace(configuration, name=name, listen=listen or (Listen(LISTEN_DEFAULT),), data_dir=data_dir.absolute())


def joined(configuration: Configuration) -> Configuration:
    """With a link to the gateways that the environment names, in place of one of that name."""
    urls = [url.strip() for url in os.environ.get(GATEWAY_VARIABLE, "").split(",") if url.strip()]
    if not urls:
        return configuration
    text = f'[[links]]\nname = "{GATEWAY}"\nrole = "{GATEWAY}"\nurls = {json.dumps(urls)}\n'
    others = tuple(link for link in configuration.links if link["name"] != GATEWAY)
    return replace(configuration, links=(*others, *parse(text, GATEWAY_VARIABLE).links))


async def _serve(node: Node, configuration: Configuration, options: argparse.Namespace) -> int:
    loop = asyncio.get_running_loop()
    supervisor = Supervisor(os.environ)
    supervisor.watch(loop)
    end = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end.set)
    reloads, reload = _Tasks(), _Reload(node, configuration, options, supervisor)
    loop.add_signal_handler(signal.SIGHUP, lambda: reloads.start(reload()))
    async with AsyncExitStack() as life:
        if not await _start(node, end, supervisor, standby=options.standby):
            return 0
        life.push_async_callback(node.stop)
        loop.add_signal_handler(signal.SIGUSR1, _dump, node)
        _say(f"weft {node.name} version {__version__}")
        for listener in node.listeners:
            for endpoint in listener.endpoints:
                _say(f"listening on {endpoint} ({'amqps' if listener.tls else 'amqp'})")
        if configuration.http is not None:
            _say(f"management on {_web(configuration.http, node.http_port)}")
        _say(f"data in {configuration.data_dir}")
        found = node.recovered()
        if found["node"] != node.name:
            _say(f"it was called {found['node']} before: what other nodes keep for it, they keep under that name")
        _tell_recovered(found)
        # What start-up made stays for good, and connections come and go without cycles: the collector has little to do.
        gc.collect()
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        _say(f"ready, pid {os.getpid()}")
        supervisor.ready("serving")
        reload.is_up.set()
        await end.wait()
        supervisor.stopping()
        _say("draining")
    return 0


def _web(place: Listen, port: int) -> str:
    return f"{'http' if place.tls_cert is None else 'https'}://{replace(place.endpoint, port=port)}"


async def _start(node: Node, end: asyncio.Event, supervisor: Supervisor, *, standby: bool) -> bool:
    """Have the node serve, once its folder is free; False if we are told to end before."""
    waits = False
    while not end.is_set():
        try:
            await node.start()
        except Taken as taken:
            if not standby:
                raise
            if not waits:
                _say(f"standing by: {taken}")
                supervisor.ready("standing by")
            waits = True
            with suppress(TimeoutError):
                await asyncio.wait_for(end.wait(), STANDBY_PAUSE_S)
        else:
            return True
    return False


def _tell_recovered(found: Mapping[str, Any]) -> None:
    """One line about what was on disk, and one for each stretch of it that was no good."""
    if found.get("messages"):
        _say(f"recovered {found['messages']} messages in {found['queues']} queues")
    if found.get("dropped"):
        _say(f"dropped {found['dropped']} messages of queues that are deleted")
    if found.get("forgotten"):
        _say(f"forgot {found['forgotten']} messages that were left alone")
    if found.get("unclaimed"):
        unknown = [f"{number} ({messages})" for number, messages in found["unknown"].items()]
        numbers = ", ".join(unknown[:UNKNOWN_MAX]) + (", …" if len(unknown) > UNKNOWN_MAX else "")
        _say(f"left alone {found['unclaimed']} messages of queues that the definitions do not know: {numbers}")
    for words in found.get("definitions", ()):
        _say(words)
    for place in found.get("torn", ()):
        _say(f"cut off what was not written to its end: {place}")
    for place in found.get("damaged", ()):
        _say(f"passed over what the disk did not keep: {place}")
    for name in found.get("strangers", ()):
        _say(f"left alone a file that is not ours: {name}")


class _Tasks(set[asyncio.Task[None]]):
    """The loop itself holds tasks only weakly."""

    def start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self.add(task)
        task.add_done_callback(self.discard)


class _Reload:
    """Reads the configuration file again when it is called, once the node is up."""

    def __init__(
        self, node: Node, configuration: Configuration, options: argparse.Namespace, supervisor: Supervisor
    ) -> None:
        self.is_up = asyncio.Event()
        self._node, self._begun_with, self._options, self._supervisor = node, configuration, options, supervisor

    async def __call__(self) -> None:
        await self.is_up.wait()
        self._supervisor.reloading()
        await self._read(self._options.config)
        self._supervisor.ready("serving")

    async def _read(self, file: str | None) -> None:
        if file is None:
            _say("nothing to reload: there is no configuration file")
            return
        try:
            configuration = configure(self._options)
            await self._node.reload(configuration)
        except WeftError as error:
            print(f"weft up: not reloaded: {error}", file=sys.stderr, flush=True)
            return
        _say(f"reloaded {file}")
        if waiting := ", ".join(_differing(self._begun_with, configuration)):
            _say(f"changed there, but not before a restart: {waiting}")


def _differing(old: Configuration, new: Configuration) -> Iterator[str]:
    """What a node takes over at its start only, and would have another value now."""
    for name in (field.name for field in fields(Configuration)):
        if name not in RELOADED and getattr(old, name) != getattr(new, name):
            yield name


def _dump(node: Node) -> None:
    print(json.dumps(node.snapshot(), default=str), file=sys.stderr, flush=True)


def _say(line: str) -> None:
    try:
        print(line, flush=True)
    except BrokenPipeError:
        # Nobody reads us any more, which is no reason to stop serving.
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


def _log_lines() -> None:
    """Logs go to standard error, each line in the one form that they have."""
    handler = logging.StreamHandler()
    handler.setFormatter(LineFormatter(EVENTS.name))
    logging.basicConfig(handlers=[handler])


def _data_home() -> Path:
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "weft"


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


def _allow_many_sockets() -> None:
    """Each connection is a file descriptor, and the customary soft limit is 1024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
