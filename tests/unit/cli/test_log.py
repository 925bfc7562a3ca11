"""`weft log`: a folder listed, and a stream printed in each of its forms."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyarrow import parquet

import weft
from weft.cli import main


@pytest.fixture
async def folder(tmp_path: Path) -> Path:
    async with weft.Node(data_dir=tmp_path / "data") as node:
        node.declare_exchange("events", "topic", durable=True)
        node.declare_queue("kept", durable=True, arguments={"x-queue-type": "stream"})
        node.declare_queue("work", durable=True)
        node.bind("events", "kept", "#")
        for number in range(4):
            text, headers = f"größe {number}\n", {"n": number}
            await node.send(f"events/size.{number}", text, delivery_mode=2, message_id=f"id-{number}", headers=headers)
        await node.send("events/raw", b"\xff", delivery_mode=2)
    return tmp_path / "data"


def run(capsys: pytest.CaptureFixture[str], *words: object) -> list[str]:
    assert main(["log", *map(str, words)]) == 0
    return capsys.readouterr().out.splitlines()


def test_a_folder_is_listed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    headings, kept, work = (line.split() for line in run(capsys, folder))
    assert headings == ["VHOST", "NAME", "KIND", "FIRST", "NEXT", "MESSAGES", "BYTES", "FROM", "TO"]
    assert kept[:6] == ["/", "kept", "stream", "0", "5", "5"]
    assert int(kept[6]) == 4 * len("größe 0\n".encode()) + 1
    assert abs(datetime.now(UTC) - datetime.fromisoformat(kept[7])) < timedelta(minutes=5)
    assert work == ["/", "work", "queue", "0", "0", "0", "0"]


def test_a_table_fits_a_terminal(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = run(capsys, folder, "kept", "--from", 1, "--to", 3, "--columns", "offset,routing_key, body")
    assert [line.split() for line in lines] == [
        ["OFFSET", "ROUTING_KEY", "BODY"],
        ["1", "size.1", "größe", "1·"],
        ["2", "size.2", "größe", "2·"],
    ]
    assert run(capsys, folder, "kept")[0].split()[:3] == ["OFFSET", "ENQUEUE_TIME", "EXCHANGE"]


def test_json_has_every_column(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [json.loads(line) for line in run(capsys, folder, "kept", "--format", "json")]
    assert [row["body"] for row in rows] == ["größe 0\n", "größe 1\n", "größe 2\n", "größe 3\n", "ff"]
    assert rows[2]["headers"] == {"n": "2"}
    assert rows[2]["message_id"] == "id-2"
    assert rows[4]["headers"] is None
    assert len(rows[0]) == 24


def test_times_choose_too(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    past, future = "2000-01-01", (datetime.now(UTC) + timedelta(days=1)).isoformat()
    assert len(run(capsys, folder, "kept", "--from", past, "--to", future)) == 6
    assert len(run(capsys, folder, "kept", "--from", future)) == 1
    assert len(run(capsys, folder, "kept", "--to", past)) == 1
    assert len(run(capsys, folder, "kept", "--from", "9" * 20)) == 1


def test_parquet_goes_to_a_file(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "kept.parquet"
    run(capsys, folder, "kept", "--format", "parquet", "--output", path)
    table = parquet.read_table(path)
    assert table["offset"].to_pylist() == [0, 1, 2, 3, 4]
    assert table["body"].to_pylist()[4] == b"\xff"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["nowhere"], 1, "there is no node's data in nowhere"),
        (["DATA", "x"], 1, "no stream or durable queue 'x' in vhost '/'"),
        (["DATA", "kept", "--vhost", "v"], 1, "no stream or durable queue 'kept' in vhost 'v'"),
        (["DATA", "kept", "--from", "yesterday"], 2, "'yesterday' is neither an offset nor a time"),
        (["DATA", "kept", "--from", "²"], 2, "'²' is neither an offset nor a time"),
        (["DATA", "kept", "--from", "9" * 5000], 2, "'" + "9" * 5000 + "' is neither an offset nor a time"),
        (["DATA", "kept", "--columns", "size"], 2, 'no column "size": there are stream, shard'),
        (["DATA", "kept", "--format", "parquet"], 2, "a parquet file needs --output FILE"),
    ],
)
def test_mistakes_are_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], code: int, said: str
) -> None:
    assert main(["log", *(str(folder) if word == "DATA" else word for word in words)]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"weft log: {said}")
    assert err.count("\n") == 1


def test_rows_without_pyarrow(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert main(["log", str(folder), "kept"]) == 1
    assert "pip install 'weft[arrow]'" in capsys.readouterr().err
    assert len(run(capsys, folder)) == 3
