"""Log lines as messages: who hears them, how many there may be, and what is left on standard error."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from typing import Any

import pytest

import weft
from weft.management.lines import LineFormatter
from weft.management.logs import LINES_MAX, LINES_WAITING_MAX, TEXT_CHARS_MAX

from .conftest import Console

LOG = logging.getLogger("weft.network")
LINES = "weft.events/log.line.#"


async def told(receiver: Any, count: int) -> list[dict[str, Any]]:
    """The next events."""
    found = []
    async with asyncio.timeout(30):
        for _ in range(count):
            message = await anext(receiver)
            message.accept()
            found.append({"key": message.routing_key, **json.loads(message.body)})
    return found


async def test_a_line_is_told_with_its_severity_and_its_error(node: weft.Node) -> None:
    async with node.receive(LINES) as lines:
        LOG.warning("route %s rests", "r")
        try:
            raise ValueError("too odd")
        except ValueError:
            LOG.exception("it failed")
        await asyncio.to_thread(LOG.error, "%s", "x" * (2 * TEXT_CHARS_MAX))
        first, second, third = await told(lines, 3)
    assert (first["key"], first["class"], first["kind"]) == ("log.line.warning.weft_network.here", "log", "line")
    assert (first["object"], first["node"], first["values"]) == ("weft.network", "here", {"text": "route r rests"})
    assert second["values"] == {"text": "it failed", "error": "ValueError: too odd"}
    assert (third["severity"], len(third["values"]["text"])) == ("error", TEXT_CHARS_MAX)


async def test_levels_are_chosen_by_log(node: weft.Node, console: Console) -> None:
    async with node.receive(LINES) as lines:
        LOG.info("not told")
        try:
            assert (await console.ask("UPDATE", {"level": "info"}, type="log", name="weft.network"))[0] == 200
            LOG.info("told now")
            (line,) = await told(lines, 1)
        finally:
            LOG.setLevel(logging.NOTSET)
    assert (line["severity"], line["values"]) == ("info", {"text": "told now"})
    status, _ = await console.ask("UPDATE", {"level": "loud"}, type="log", name="weft.network")
    assert status == 400
    assert (await console.ask("UPDATE", {"level": "info"}, type="log", name="other"))[0] == 404
    (row,) = [row for row in await console.rows("log") if row["name"] == "weft.network"]
    assert (row["level"], row["told"], row["dropped"]) == ("warning", 1, 0)


async def test_a_flood_is_bounded_and_counted(node: weft.Node, console: Console) -> None:
    async with node.receive(LINES) as lines:
        for number in range(3 * LINES_WAITING_MAX):
            LOG.warning("line %d", number)
        first = await told(lines, LINES_WAITING_MAX)
        (row,) = [row for row in await console.rows("log") if row["name"] == "weft.network"]
    assert [line["values"]["text"] for line in first] == [f"line {number}" for number in range(LINES_WAITING_MAX)]
    assert LINES_WAITING_MAX <= LINES_MAX
    assert (row["lines"], row["told"], row["dropped"]) == (300, 100, 200)


async def test_nothing_is_kept_while_nobody_listens(node: weft.Node, console: Console) -> None:
    LOG.warning("unheard")
    (row,) = [row for row in await console.rows("log") if row["name"] == "weft.network"]
    assert (row["lines"], row["told"], row["dropped"]) == (1, 0, 0)
    async with node.receive(LINES) as lines:
        LOG.warning("heard")
        (line,) = await told(lines, 1)
    assert line["values"] == {"text": "heard"}


async def test_warnings_still_reach_standard_error_where_no_program_handles_them() -> None:
    program = (
        "import asyncio, logging, weft\n"
        "async def main():\n"
        "    async with weft.Node(name='a') as a, weft.Node(name='b') as b:\n"
        "        logging.getLogger('weft.network').warning('told once')\n"
        "        logging.getLogger('weft.network').info('quiet')\n"
        "asyncio.run(main())\n"
    )
    pipes = {"stdout": asyncio.subprocess.PIPE, "stderr": asyncio.subprocess.PIPE}
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, **pipes)
    assert await process.communicate() == (b"", b"told once\n")


def test_a_line_is_one_line_whatever_is_in_it() -> None:
    form = LineFormatter("weft.events")
    error = None
    try:
        raise ValueError("a\nb")
    except ValueError:
        error = sys.exc_info()
    record = logging.LogRecord("weft", logging.ERROR, "", 0, 'it "failed"\nhere=%s', ("\x1b[31m",), error)
    record.created = 0.25
    line = form.format(record)
    assert line.startswith('time=1970-01-01T00:00:00.250Z severity=error log=weft text="it \\"failed\\"\\nhere=\\u001b')
    assert "ValueError: a\\nb" in line
    assert line.isprintable()
    event = logging.LogRecord("weft.events", logging.WARNING, "", 0, "event=node.quiesced object=a", (), None)
    assert form.format(event).endswith("severity=warning event=node.quiesced object=a")


@pytest.mark.parametrize("level", ["info", "warning"])
async def test_the_configuration_chooses_the_level(level: str) -> None:
    from weft.config import parse

    before = logging.getLogger("weft").level
    configuration = parse(f'[log]\nlevel = "{level}"\n')
    try:
        async with weft.Node(name="here", configuration=configuration) as node, node.receive(LINES) as lines:
            LOG.info("first")
            LOG.warning("last")
            wanted = ["first", "last"] if level == "info" else ["last"]
            assert [line["values"]["text"] for line in await told(lines, len(wanted))] == wanted
    finally:
        logging.getLogger("weft").setLevel(before)
