"""What is done when a rule fires: a log line, an event, a trap, a check result, a call, a command, a scaling request.

Owns one class per kind of action. Firings come in; each action tells the world once, within its time limit, and
raises `Unavailable` when it cannot.
It must never decide whether to act: that is `watch`; with `dry_run` nothing is done but said.
Rule: docs/guides/rules.md, "Actions".
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp

from weft.model.errors import ConfigError, Unavailable
from weft.rules.file import ActionSettings
from weft.rules.rule import Firing
from weft.rules.snmp import send_trap

TIMEOUT_S = 10.0
OUTPUT_BYTES_MAX = 4_096
"""How much of what a command says is told when it fails."""
PIPE_BYTES = 65_536
"""What a pipe holds."""
SCALING_ADDRESS = "weft.scaling"

Action = Callable[[Firing], Awaitable[None]]
Send = Callable[[str, Mapping[str, object]], Awaitable[None]]
"""Send a JSON message to an address."""
Tell = Callable[[str, str, str, Mapping[str, object]], Awaitable[None]]
"""Publish an event: class, kind, object, values."""


def build(
    settings: ActionSettings,
    *,
    node: str,
    send: Send | None,
    tell: Tell | None = None,
    write: Callable[[str], None] = print,
) -> Action:
    """The action that settings describe. `write` takes log lines that no file is named for."""
    options = settings.options
    match settings.kind:
        case "log":
            return _Log(Path(options["file"]) if "file" in options else None, write)
        case "event" if tell is not None:
            return _Event(tell)
        case "scale" if send is not None:
            return _Scale(send, options)
        case "event" | "scale":
            raise ConfigError(f"the action {settings.name} sends messages, which needs a connection to a node")
        case "snmp":
            return _Trap(options)
        case "nagios":
            return _CheckResult(options, node)
        case "webhook":
            return _Call(options)
        case _:
            return _Command(settings.name, options)


def say_only(settings: ActionSettings, write: Callable[[str], None]) -> Action:
    """For a dry run: tells what would be done."""

    async def act(firing: Firing) -> None:
        write(f"would do {settings.name}: {firing.text}")

    return act


class _Log:
    def __init__(self, file: Path | None, write: Callable[[str], None]) -> None:
        self._file = file
        self._write = write

    async def __call__(self, firing: Firing) -> None:
        state = firing.rule.severity if firing.raised else "cleared"
        line = f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {state} {firing.text}"
        if self._file is None:
            self._write(line)
        else:
            await asyncio.to_thread(_append, self._file, line + "\n")


class _Event:
    def __init__(self, tell: Tell) -> None:
        self._tell = tell

    async def __call__(self, firing: Firing) -> None:
        await self._tell("rule", "crossed" if firing.raised else "cleared", firing.rule.name, firing.as_dict())


class _Scale:
    def __init__(self, send: Send, options: Mapping[str, Any]) -> None:
        self._send = send
        self._service = options.get("service")
        self._add = int(options.get("add", 1))
        self._address = options.get("address", SCALING_ADDRESS)

    async def __call__(self, firing: Firing) -> None:
        if firing.raised:
            service = self._service or firing.object
            body = {"service": service, "add": self._add, "reason": firing.text, "source": f"rule {firing.rule.name}"}
            await self._send(self._address, body)


class _Trap:
    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = options

    async def __call__(self, firing: Firing) -> None:
        await send_trap(firing, **self._options)


class _CheckResult:
    """A passive check result, as Nagios and its relatives read from their command file."""

    _CODES: Mapping[str, int] = {"info": 0, "warning": 1, "critical": 2}

    def __init__(self, options: Mapping[str, Any], node: str) -> None:
        self._file = Path(options["file"])
        self._host = options.get("host", node)
        self._service = options.get("service")

    async def __call__(self, firing: Firing) -> None:
        code = self._CODES[firing.rule.severity] if firing.raised else 0
        # Semicolons and line ends separate the fields.
        service, text = ((words or "").replace(";", ",").replace("\n", " ") for words in (self._service, firing.text))
        service = service or firing.rule.name
        line = f"[{int(time.time())}] PROCESS_SERVICE_CHECK_RESULT;{self._host};{service};{code};{text}\n"
        await asyncio.to_thread(_append, self._file, line)


class _Call:
    def __init__(self, options: Mapping[str, Any]) -> None:
        self._url = str(options["url"])
        self._timeout_s = float(options.get("timeout_s", TIMEOUT_S))
        if not self._url.startswith(("http://", "https://")):
            raise ConfigError(f"a webhook's url must begin with http:// or https://, not {self._url!r}")

    async def __call__(self, firing: Firing) -> None:
        timeout = aiohttp.ClientTimeout(total=self._timeout_s)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout, trust_env=True) as session,
                session.post(self._url, json=firing.as_dict()) as answer,
            ):
                # What it says beyond that is nobody's business: a server may go on for as long as it likes.
                status = answer.status
        except TimeoutError as error:
            raise Unavailable(f"cannot call {self._url}: no answer within {self._timeout_s:g} s") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise Unavailable(f"cannot call {self._url}: {error}") from error
        if status >= 400:
            raise Unavailable(f"{self._url} answered {status}")


class _Command:
    """Runs a program; words like `{object}` in its arguments and WEFT_* in its environment tell what fired."""

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        self._name = name
        self._words: list[str] = list(options["run"])
        self._timeout_s = float(options.get("timeout_s", TIMEOUT_S))
        try:
            [word.format_map(_FIELDS) for word in self._words]
        except (KeyError, ValueError, IndexError, AttributeError) as error:
            fields = ", ".join("{" + field + "}" for field in _FIELDS)
            raise ConfigError(f"the action {name}: {error} is not known in run (there are {fields})") from error

    async def __call__(self, firing: Firing) -> None:
        if not firing.raised:
            return
        fields = {key: str(value) for key, value in firing.as_dict().items() if key in _FIELDS}
        words = [word.format_map(fields) for word in self._words]
        environment = os.environ | {f"WEFT_{key.upper()}": value for key, value in fields.items()}
        code, said = await self._run(words, environment)
        if code:
            raise Unavailable(f"the action {self._name} ended with {code}: {said.decode(errors='replace').strip()}")

    async def _run(self, words: list[str], environment: Mapping[str, str]) -> tuple[int, bytes]:
        """What a program ended with, and the end of what it said. What it leaves running is not waited for."""
        with _Tail(OUTPUT_BYTES_MAX) as tail:
            null = asyncio.subprocess.DEVNULL
            try:
                # With a group of its own: if it must be ended, so must be what it started.
                process = await asyncio.create_subprocess_exec(
                    *words, env=environment, stdin=null, stdout=null, stderr=tail.write_end, start_new_session=True
                )
            except OSError as error:
                raise Unavailable(f"the action {self._name} cannot run {words[0]}: {error.strerror}") from error
            try:
                async with asyncio.timeout(self._timeout_s):
                    code = await process.wait()
            except TimeoutError as error:
                raise Unavailable(
                    f"the action {self._name} took more than {self._timeout_s:g} s, and was ended"
                ) from error
            finally:
                if process.returncode is None:
                    with suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
                    await process.wait()
            return code, tail.take()


class _Tail:
    """A pipe of which only the end is kept, however much is written to it."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._kept = b""
        self._loop = asyncio.get_running_loop()
        self._read_end, self.write_end = os.pipe()

    def __enter__(self) -> _Tail:
        os.set_blocking(self._read_end, False)
        self._loop.add_reader(self._read_end, self.take)
        return self

    def __exit__(self, *_error: object) -> None:
        self._loop.remove_reader(self._read_end)
        os.close(self._read_end)
        os.close(self.write_end)

    def take(self) -> bytes:
        """All that is kept, what is in the pipe now included."""
        with suppress(BlockingIOError):
            self._kept = (self._kept + os.read(self._read_end, PIPE_BYTES))[-self._bytes_max :]
        return self._kept


_FIELDS: Mapping[str, str] = {
    "rule": "",
    "class": "",
    "object": "",
    "attribute": "",
    "value": "",
    "threshold": "",
    "severity": "",
    "text": "",
}


def _append(file: Path, line: str) -> None:
    """Whole lines only: several writers may share the file, and a named pipe is fine. A pipe nobody reads must not
    hang the caller.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK
    try:
        descriptor = os.open(file, flags, 0o644)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)
    except OSError as error:
        raise Unavailable(f"cannot write to {file}: {error.strerror}") from error
