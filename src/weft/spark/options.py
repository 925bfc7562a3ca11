"""The options of `format("weft")`, read once and checked.

Owns their names, defaults and limits, and what is told about a wrong one. Strings come in (Spark lowers the names), a
frozen value goes out, from which a log can be opened on any executor.
It must never open anything itself: options are read on the driver, logs on executors.
The table of options is in docs/guides/spark.md.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from weft.model.errors import ConfigError

EARLIEST, LATEST = "earliest", "latest"
SLICE_ROWS = 1_000_000
NUMBER_MAX = 2**63 - 1
READ = (
    "url", "path", "vhost", "lake", "stream", "streams", "pattern", "startingOffsets", "endingOffsets",
    "startingTimestamp", "endingTimestamp", "maxRowsPerTrigger", "maxBytesPerTrigger", "minRowsPerTrigger",
    "maxTriggerDelay", "failOnDataLoss", "minPartitions", "maxRowsPerPartition", "query",
)  # fmt: skip
WRITE = ("url", "exchange", "routingKey", "address", "producer", "batch", "ratePerSecond", "inFlight", "headers")


@dataclass(frozen=True)
class ReadOptions:
    """What to read, from where, from when to when, and in steps of what size."""

    streams: tuple[str, ...]
    url: str | None = None
    path: str | None = None
    vhost: str = "/"
    lake: str | None = None
    starting: str | Mapping[str, int] | int = EARLIEST
    """`earliest`, `latest`, offsets by `stream/shard`, or a time in microseconds."""
    ending: str | Mapping[str, int] | int = LATEST
    rows_max: int = 0
    bytes_max: int = 0
    rows_min: int = 0
    delay_max_s: float = 0.0
    fail_on_data_loss: bool = True
    partitions_min: int = 0
    """0: as many as the rows are worth."""
    partition_rows_max: int = SLICE_ROWS
    query: str = "spark"


@dataclass(frozen=True)
class WriteOptions:
    """Where messages go, and under which identity."""

    url: str
    exchange: str | None = None
    routing_key: str | None = None
    producer: str | None = None
    batch: int | None = None
    rate_per_s: float = 0.0
    in_flight: int = 4_096
    headers: tuple[tuple[str, str], ...] = ()


def read_options(options: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    """Check the options of a read; ConfigError says what to change."""
    given = _known(options, READ)
    names = [part.strip() for key in ("stream", "streams", "pattern") for part in given.get(key, "").split(",")]
    streams = tuple(name for name in names if name)
    if not streams:
        raise ConfigError('say which stream: .option("stream", "orders"), several by commas, or pattern "orders.*"')
    if not any(given.get(key) for key in ("url", "path", "lake")):
        raise ConfigError('say where: .option("url", "amqp://host") of a node, "path" (its data folder), or "lake"')
    if given.get("url") and given.get("path"):
        raise ConfigError("url and path are two ways to the same node: give one")
    for side in ("starting", "ending"):
        if f"{side}Offsets" in given and f"{side}Timestamp" in given:
            raise ConfigError(f"{side}Offsets and {side}Timestamp say the same thing: give one")
    if streaming and ("endingOffsets" in given or "endingTimestamp" in given):
        raise ConfigError("a streaming read has no end: leave endingOffsets and endingTimestamp out")
    return ReadOptions(
        streams=streams,
        url=given.get("url"),
        path=given.get("path"),
        vhost=given.get("vhost", "/"),
        lake=given.get("lake"),
        starting=_bound(given, "starting", EARLIEST),
        ending=_bound(given, "ending", LATEST),
        rows_max=_count(given, "maxRowsPerTrigger", 0),
        bytes_max=_count(given, "maxBytesPerTrigger", 0),
        rows_min=_count(given, "minRowsPerTrigger", 0),
        delay_max_s=_count(given, "maxTriggerDelay", 0, unit="seconds"),
        fail_on_data_loss=_flag(given, "failOnDataLoss", True),
        partitions_min=int(_count(given, "minPartitions", 0)),
        partition_rows_max=max(1, int(_count(given, "maxRowsPerPartition", SLICE_ROWS))),
        query=given.get("query", "spark"),
    )


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """Check the options of a write."""
    given = _known(options, WRITE)
    if not given.get("url"):
        raise ConfigError('say where to: .option("url", "amqp://host") of a node')
    exchange, key = given.get("exchange"), given.get("routingKey")
    if "address" in given:
        if exchange is not None or key is not None:
            raise ConfigError("address stands for exchange and routingKey: give it, or those two")
        exchange, key = split_address(given["address"])
    headers = tuple(part.partition("=")[::2] for part in given.get("headers", "").split(",") if part)
    if any(not name for name, _ in headers):
        raise ConfigError("headers are name=value, separated by commas")
    return WriteOptions(
        url=given["url"],
        exchange=exchange,
        routing_key=key,
        producer=given.get("producer"),
        batch=int(_count(given, "batch", 0)) if "batch" in given else None,
        rate_per_s=_count(given, "ratePerSecond", 0),
        in_flight=max(1, int(_count(given, "inFlight", 4_096))),
        headers=headers,
    )


def split_address(address: str) -> tuple[str, str]:
    """`exchange/key`, or a queue, which is a key of the default exchange."""
    exchange, slash, key = address.partition("/")
    return (exchange, key) if slash else ("", address)


def _known(options: Mapping[str, str], names: tuple[str, ...]) -> dict[str, str]:
    """Options by their proper names; Spark gives them in any case. Spark's own, with a dot, pass by."""
    by_lower = {name.lower(): name for name in names}
    given = {}
    for key, value in options.items():
        if key.lower() in by_lower:
            given[by_lower[key.lower()]] = str(value)
        elif "." not in key and key.lower() not in ("mode", "checkpointlocation", "queryname", "outputmode"):
            raise ConfigError(f"weft has no option {key}: choose from {', '.join(names)}")
    return given


def _bound(given: Mapping[str, str], side: str, default: str) -> str | dict[str, int] | int:
    if f"{side}Timestamp" in given:
        return microseconds(given[f"{side}Timestamp"], f"{side}Timestamp")
    text = given.get(f"{side}Offsets", default).strip()
    if text in (EARLIEST, LATEST):
        return text
    try:
        offsets = json.loads(text)
    except ValueError:
        offsets = None
    if _is_offset(offsets):
        return {"": offsets}
    if isinstance(offsets, dict) and all(_is_offset(value) for value in offsets.values()):
        return {key if "/" in key else f"{key}/0": value for key, value in offsets.items()}
    raise ConfigError(f'{side}Offsets is earliest, latest, a number, or JSON such as {{"orders/0": 17}}; not {text!r}')


def _is_offset(value: object) -> bool:
    """Whether JSON has a number here; to Python its truth values are some, too."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= NUMBER_MAX


def microseconds(text: str, name: str) -> int:
    """ISO 8601 (UTC where it names no zone), or milliseconds since 1970."""
    if text.isdecimal() and int(text[:20]) * 1000 <= NUMBER_MAX:
        return int(text) * 1000
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"{name} is a time such as 2026-11-15T10:00:00, or milliseconds since 1970") from None
    return int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1_000_000)


def _count(given: Mapping[str, str], name: str, default: int, unit: str = "a number") -> int:
    text = given.get(name, str(default))
    scale = 1
    for suffix, factor in (("k", 1_000), ("m", 1_000_000), ("g", 1_000_000_000)):
        if text.lower().endswith(suffix) and name.startswith("max") and "Bytes" in name:
            text, scale = text[:-1], factor
    try:
        value = int(text)
    except ValueError:
        value = -1
    if value < 0:
        raise ConfigError(f"{name} is {unit}, 0 or more; not {given.get(name)!r}")
    return value * scale


def _flag(given: Mapping[str, str], name: str, default: bool) -> bool:
    text = given.get(name, str(default)).lower()
    if text not in ("true", "false"):
        raise ConfigError(f"{name} is true or false, not {given[name]!r}")
    return text == "true"
