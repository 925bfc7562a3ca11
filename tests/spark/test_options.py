"""Options: what is wrong is told before anything is opened."""

from __future__ import annotations

import subprocess
import sys

import pytest

from weft.model.errors import ConfigError
from weft.spark.options import read_options, write_options


@pytest.mark.parametrize(
    ("options", "streaming", "told"),
    [
        ({}, False, "which stream"),
        ({"stream": "s"}, False, "say where"),
        ({"stream": "s", "url": "amqp://h", "path": "/p"}, False, "give one"),
        ({"stream": "s", "path": "/p", "offsets": "3"}, False, "no option offsets"),
        ({"stream": "s", "path": "/p", "startingOffsets": "soon"}, False, "startingOffsets is"),
        ({"stream": "s", "path": "/p", "startingOffsets": "-1"}, False, "startingOffsets is"),
        ({"stream": "s", "path": "/p", "startingOffsets": "true"}, False, "startingOffsets is"),
        ({"stream": "s", "path": "/p", "startingOffsets": '{"s": false}'}, False, "startingOffsets is"),
        ({"stream": "s", "path": "/p", "startingOffsets": "9" * 30}, False, "startingOffsets is"),
        ({"stream": "s", "path": "/p", "startingTimestamp": "yesterday"}, False, "is a time"),
        ({"stream": "s", "path": "/p", "startingTimestamp": "9" * 30}, False, "is a time"),
        ({"stream": "s", "path": "/p", "startingTimestamp": "1", "startingOffsets": "1"}, False, "give one"),
        ({"stream": "s", "path": "/p", "endingOffsets": "latest"}, True, "no end"),
        ({"stream": "s", "path": "/p", "maxRowsPerTrigger": "many"}, True, "maxRowsPerTrigger"),
        ({"stream": "s", "path": "/p", "failOnDataLoss": "maybe"}, True, "true or false"),
    ],
)
def test_wrong_read(options: dict[str, str], streaming: bool, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        read_options(options, streaming=streaming)


def test_read() -> None:
    options = read_options(
        {"STREAMS": "a, b", "pattern": "c.*", "path": "/p", "startingoffsets": '{"a": 3, "b/1": 4}',
         "endingTimestamp": "2027-01-15T08:00:00", "maxBytesPerTrigger": "2m"},
        streaming=False,
    )  # fmt: skip
    assert options.streams == ("a", "b", "c.*")
    assert options.starting == {"a/0": 3, "b/1": 4}
    assert options.ending == 1_800_000_000_000_000
    assert options.bytes_max == 2_000_000


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "where to"),
        ({"url": "amqp://h", "address": "q", "exchange": "e"}, "address stands"),
        ({"url": "amqp://h", "headers": "=1"}, "name=value"),
        ({"url": "amqp://h", "queue": "q"}, "no option queue"),
    ],
)
def test_wrong_write(options: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        write_options(options)


def test_write() -> None:
    options = write_options({"url": "amqp://h", "address": "bank/pay.made", "headers": "a=1,b=x=y", "batch": "0"})
    assert (options.exchange, options.routing_key, options.batch) == ("bank", "pay.made", 0)
    assert options.headers == (("a", "1"), ("b", "x=y"))


def test_the_source_is_imported_without_what_a_reader_of_files_does_not_need() -> None:
    code = "import sys, weft.spark; print(*{'pyarrow.parquet', 'pyarrow.compute', 'weft.client'} & sys.modules.keys())"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert told.stdout.split() == [], "Spark starts a process for every query and imports the source there"
