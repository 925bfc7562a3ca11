"""The jobs of a run: what each keeps of a batch, what it answers with messages, and what the whole comes to.

Owns the table of jobs and nothing of their arithmetic. Rows of a batch and the silver of all batches come in; silver,
messages and gold go out, as DataFrames that nobody has asked for yet.
It must never send or store: that is the run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from weft.model.errors import ConfigError
from weft.pipeline import capacity, integrity, risk, topology, traffic
from weft.pipeline.exchanges import RESULTS
from weft.pipeline.messages import as_messages, message
from weft.pipeline.store import Keep

Rows = Callable[[DataFrame], DataFrame]
LITERALS_MAX = 100
"""Values that a condition spells out; more of them are joined."""


@dataclass(frozen=True)
class Job:
    """One job of the pipeline."""

    name: str
    columns: tuple[str, ...]
    where: str
    """Which rows concern it, in SQL."""
    silver: Mapping[str, Rows]
    """What is kept of a batch, by table."""
    gold: Mapping[str, tuple[str, Rows]]
    """What all of a silver table comes to, by table."""
    answer: tuple[str, Callable[[pa.Table, DataFrame], DataFrame]] | None = None
    """Messages that follow from a batch's rows of a silver table, and those of all batches, this one among them."""
    latest: str | None = None
    """A column of time, where an answer is about the times of a batch's own rows alone."""
    keep: Mapping[str, Keep] = field(default_factory=dict)
    """Silver tables that would grow with every message, and how much of them is kept."""


def _touched(whole: DataFrame, batch: pa.Table, *keys: str) -> DataFrame:
    """The rows of all batches that have the keys of this one."""
    values = batch.select(keys).group_by(list(keys)).aggregate([])
    if len(keys) == 1 and values.num_rows <= LITERALS_MAX:
        # Files that have none of them are then not even opened, and nothing is broadcast.
        if pa.types.is_timestamp(values[keys[0]].type):
            times = values[keys[0]].cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_pylist()
            return whole.where(f"{keys[0]} IN ({', '.join(f'timestamp_micros({time})' for time in times)})")
        return whole.where(F.col(keys[0]).isin(values[keys[0]].to_pylist()))
    return whole.join(F.broadcast(whole.sparkSession.createDataFrame(values)), list(keys), "left_semi")


def _windows(batch: pa.Table, whole: DataFrame) -> DataFrame:
    """The figures of every window that this batch touched, as they are now."""
    found = traffic.results(_touched(whole, batch, "window_start"))
    columns = ", ".join(found.columns)
    key = "concat('traffic.', coalesce(nullif(address, ''), 'none'))"
    identity, body = f"concat_ws(':', 'traffic', xxhash64({columns}))", f"struct({columns})"
    return as_messages(found, message(RESULTS, key, kind="traffic", identity=identity, body=body))


def _suspicions(batch: pa.Table, whole: DataFrame) -> DataFrame:
    """Judge the accounts of this batch by their last day; in a backlog each had its own."""
    oldest = F.lit(pc.min(batch["at"]).as_py())
    known = _touched(whole, batch, "account").where(F.col("at") > oldest - F.expr(risk.HISTORY))
    return risk.answers(risk.suspects(known))


def _scaling(batch: pa.Table, whole: DataFrame) -> DataFrame:
    """Advice on the queues that this batch has samples of."""
    return capacity.commands(capacity.recommendations(capacity.forecasts(_touched(whole, batch, "node", "queue"))))


JOBS = (
    Job(
        "traffic",
        traffic.COLUMNS,
        "true",
        silver={"traffic": traffic.partials},
        gold={"traffic": ("traffic", traffic.results), "sizes": ("traffic", traffic.size_results)},
        answer=("traffic", _windows),
        latest="window_start",
    ),
    Job(
        "integrity",
        integrity.COLUMNS,
        f"headers['{integrity.SEQUENCE}'] IS NOT NULL",
        silver={"sightings": integrity.sightings},
        gold={
            "paths": ("sightings", integrity.paths),
            "redundancy": ("sightings", integrity.redundancy),
            "gaps": ("sightings", integrity.gaps),
        },
        keep={"sightings": Keep("at", series=("sender", "sequence"))},
    ),
    Job(
        "risk",
        risk.COLUMNS,
        "routing_key LIKE 'account.%'",
        silver={"accounts": risk.events},
        gold={"suspects": ("accounts", risk.suspects)},
        answer=("accounts", _suspicions),
        keep={"accounts": Keep("seen")},
    ),
    Job(
        "capacity",
        capacity.COLUMNS,
        "routing_key LIKE 'queue.statistics.%' OR stream LIKE 'weft.statistics%'",
        silver={"samples": capacity.samples},
        gold={
            "rates": ("samples", capacity.rates),
            "forecasts": ("samples", lambda rows: capacity.recommendations(capacity.forecasts(rows))),
        },
        answer=("samples", _scaling),
        keep={"samples": Keep("time")},
    ),
    Job(
        "topology",
        topology.COLUMNS,
        "true",
        silver={"conversations": topology.conversations},
        gold={
            "edges": ("conversations", topology.edges),
            "conversations": ("conversations", topology.merge_conversations),
        },
    ),
    Job(
        "connections",
        topology.EVENT_COLUMNS,
        "routing_key LIKE 'connection.%'",
        silver={"connections": topology.connections},
        gold={"connections": ("connections", topology.merge_connections)},
    ),
)


def choose(names: str | None) -> tuple[Job, ...]:
    """Jobs by their names, separated by commas; all of them where none is named."""
    wanted = [name.strip() for name in (names or "").split(",") if name.strip()]
    known = {job.name: job for job in JOBS}
    strangers = [name for name in wanted if name not in known]
    if strangers:
        raise ConfigError(f"there is no job {', '.join(strangers)}: choose from {', '.join(known)}")
    return tuple(known[name] for name in wanted) or JOBS
