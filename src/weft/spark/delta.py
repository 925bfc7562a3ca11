"""The lake's files as Delta tables: the same Parquet, and beside it a log that readers of Delta know.

Owns the log and nothing of the rows: a table per shard, in the shard's own folder. A lake and names of streams come in;
commits that add the files a table does not have yet go out, by delta-rs, without Spark and without a copy.
It must never be needed to read the lake, whose files' names stay its only truth: a log that is lost is written again.
Rule: docs/guides/pipeline.md, "Delta and Iceberg".
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from deltalake import DeltaTable, Schema
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, create_table_with_add_actions

from weft.model.errors import ConfigError, Unavailable
from weft.spark.lake import Lake
from weft.spark.offsets import Extent
from weft.spark.schema import STREAM, arrow_schema


def publish(lake: Lake, names: Sequence[str]) -> dict[str, int]:
    """Add the files that the tables of these streams lack; the version of each table, by its folder."""
    if "?" in lake.url:
        raise ConfigError("for a Delta log give the server by AWS_ENDPOINT_URL (and AWS_ALLOW_HTTP), not in the URL")
    versions = {}
    for extent in lake.extents(names):
        table = _address(lake, extent)
        try:
            versions[table] = _commit(lake, extent, table)
        except (DeltaError, OSError) as error:
            raise Unavailable(f"Delta table {table}: {error}") from None
    return versions


def _commit(lake: Lake, extent: Extent, table: str) -> int:
    there = DeltaTable(table) if DeltaTable.is_deltatable(table) else None
    known = {uri.rpartition("/")[2] for uri in there.file_uris()} if there is not None else set()
    added = [file for file in _files(lake, extent) if file.path not in known]
    schema = Schema.from_arrow(arrow_schema(STREAM))
    if there is None:
        create_table_with_add_actions(table, schema, added, name=extent.key)
    elif added:
        there.create_write_transaction(list(added), "append", schema)
    return DeltaTable(table).version()


def _files(lake: Lake, extent: Extent) -> list[AddAction]:
    """The files of a shard as Delta tells of them, with what lets a reader pass one by."""
    system, _ = lake.place
    found = []
    for first, end, path in lake.files(extent):
        if not path.endswith(f"/{first:020}-{end:020}.parquet"):
            raise Unavailable(f"{path} has rows that other files have, too, and a table would show them twice")
        info = system.get_file_info(path)
        bounds = {"minValues": {"offset": first}, "maxValues": {"offset": end - 1}, "nullCount": {"offset": 0}}
        stats = json.dumps({"numRecords": end - first, **bounds})
        written_ms = (info.mtime_ns or 0) // 1_000_000
        found.append(AddAction(info.base_name, info.size, {}, written_ms, data_change=True, stats=stats))
    return found


def _address(lake: Lake, extent: Extent) -> str:
    """The folder of a shard, by the name under which the lake was given."""
    _, root = lake.place
    folder = lake.folder(extent).removeprefix(root)
    return f"{lake.url.rstrip('/')}/streams{folder}".replace("s3a://", "s3://", 1)
