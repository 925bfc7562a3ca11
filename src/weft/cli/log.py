"""`weft log`: what streams and durable queues hold, read from a data folder.

Owns the listing of a folder and the printing of a stream's messages. A folder comes in, and a name for one stream; the
node of the folder may be running, stopped or dead.
It must never write into the folder, nor ask the node. Messages as rows need pyarrow, which is an extra.
Rule: docs/reference/columns.md.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.log import MESSAGES, LogReader, StoredQueue, open_log, stored_queues
from weft.model.errors import ConfigError, Corrupt, Unavailable

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = "offset,enqueue_time,exchange,routing_key,message_id,body_bytes"
"""What a table shows unless asked otherwise: it fits a terminal."""
CELL_MAX = 40
OFFSET_MAX = 2**64 - 1
HEADINGS = ("VHOST", "NAME", "KIND", "FIRST", "NEXT", "MESSAGES", "BYTES", "FROM", "TO")


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("folder", metavar="DATA_DIR", help="the data folder of a node")
    parser.add_argument("stream", nargs="?", help="print the messages of this stream or durable queue")
    parser.add_argument("--number", type=int, help="print what was left alone under this number (weft up tells it)")
    parser.add_argument("--vhost", default="/", help="its virtual host (default: /)")
    parser.add_argument("--from", dest="start", metavar="WHERE", help="first offset, or a time as 2026-01-31T12:00:00Z")
    parser.add_argument("--to", dest="end", metavar="WHERE", help="offset or time to end before")
    parser.add_argument("--columns", help=f"names with commas between, or `all` (default of a table: {COLUMNS})")
    parser.add_argument("--format", choices=("table", "json", "parquet"), default="table")
    parser.add_argument("--output", metavar="FILE", help="where a parquet file goes")


def run(options: argparse.Namespace) -> int:
    """List the folder, or print one stream."""
    try:
        if options.stream is None and options.number is None:
            _list(Path(options.folder))
        else:
            _print(options)
    except Corrupt as error:
        raise Unavailable(str(error)) from None
    return 0


def _list(folder: Path) -> None:
    rows = [_describe(queue, LogReader(folder / MESSAGES, queue.number)) for queue in stored_queues(folder)]
    _align([HEADINGS, *rows])


def _describe(queue: StoredQueue, log: LogReader) -> tuple[str, ...]:
    times = log.times()
    moments = [_moment(time_us) for time_us in times] if times else ["", ""]
    kind = "stream" if queue.is_stream else "queue"
    return queue.vhost, queue.name, kind, *map(str, log.extent()), *moments


def _moment(time_us: int) -> str:
    return datetime.fromtimestamp(time_us / 1e6, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _print(options: argparse.Namespace) -> None:
    pyarrow = _pyarrow()
    log = _open(options)
    for text in log.damaged():
        print(f"weft log: damaged: {text}", file=sys.stderr)
    first, end = log.offsets()
    start = first if options.start is None else _place(log, options.start)
    end = end if options.end is None else _place(log, options.end)
    names = _columns(options)
    try:
        stream = log.read(start, end, names)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    reader = pyarrow.RecordBatchReader.from_stream(stream)
    try:
        _write(options, reader)
    except pyarrow.ArrowException as error:
        raise Unavailable(str(error)) from None


def _open(options: argparse.Namespace) -> LogReader:
    if options.number is None:
        return open_log(options.folder, options.vhost, options.stream)
    if options.stream is not None:
        raise ConfigError("a stream has its name; --number is for what has none")
    if not 0 < options.number < 2**63:
        raise ConfigError(f"{options.number} is no number of a queue")
    return LogReader(Path(options.folder) / MESSAGES, options.number)


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError:
        raise Unavailable("printing messages needs pyarrow: pip install 'weft[arrow]'") from None
    return pyarrow


def _columns(options: argparse.Namespace) -> list[str] | None:
    if options.columns == "all" or (options.columns is None and options.format != "table"):
        return None
    return [name.strip() for name in (options.columns or COLUMNS).split(",")]


def _place(log: LogReader, text: str) -> int:
    """An offset as it is, or the first offset at or after a time."""
    if re.fullmatch("[0-9]{1,20}", text):
        return min(int(text), OFFSET_MAX)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"{text!r} is neither an offset nor a time such as 2026-01-31T12:00:00Z") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return log.find(max(0, int(moment.timestamp() * 1e6)))


def _write(options: argparse.Namespace, reader: pa.RecordBatchReader) -> None:
    match options.format:
        case "json":
            for row in _rows(reader):
                print(json.dumps(row, ensure_ascii=False))
        case "parquet":
            if options.output is None:
                raise ConfigError("a parquet file needs --output FILE")
            from pyarrow import parquet

            with parquet.ParquetWriter(options.output, reader.schema) as writer:
                for batch in reader:
                    writer.write_batch(batch)
        case _:
            rows = [tuple(name.upper() for name in reader.schema.names)]
            rows.extend(tuple(_cell(value) for value in row.values()) for row in _rows(reader))
            _align(rows)


def _rows(reader: pa.RecordBatchReader) -> Iterator[dict[str, Any]]:
    for batch in reader:
        for row in batch.to_pylist():
            yield {name: _plain(value) for name, value in row.items()}


def _plain(value: Any) -> Any:
    """A value as JSON can hold it; a body that is no text in hexadecimal."""
    match value:
        case datetime():
            return value.isoformat().replace("+00:00", "Z")
        case bytes():
            try:
                return value.decode()
            except UnicodeDecodeError:
                return value.hex()
        case [(_, _), *_]:
            return dict(value)
        case _:
            return value


def _cell(value: Any) -> str:
    if value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = "".join(letter if letter.isprintable() else "·" for letter in text)
    return text if len(text) <= CELL_MAX else f"{text[: CELL_MAX - 1]}…"


def _align(rows: list[tuple[str, ...]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())
