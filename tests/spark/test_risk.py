"""Risk: injected fraud is found, honest accounts are left alone, and a lock is sent once."""

from __future__ import annotations

import json
from collections.abc import Callable

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.testing import assertDataFrameEqual

from weft.pipeline import risk, synthetic
from weft.spark.schema import check_message

Table = Callable[[pa.Table], DataFrame]


@pytest.fixture(scope="module")
def accounts() -> synthetic.Accounts:
    return synthetic.accounts(300, frauds=40, seed=11)


def test_precision_and_recall(table: Table, accounts: synthetic.Accounts) -> None:
    found = {row["account"]: row["reasons"] for row in risk.suspects(risk.events(table(accounts.events))).collect()}
    caught = accounts.fraud.keys() & found.keys()
    precision, recall = len(caught) / len(found), len(caught) / len(accounts.fraud)
    assert precision >= 0.95, f"locked though honest: {sorted(found.keys() - accounts.fraud.keys())}"
    assert recall >= 0.95, f"missed: { {name: accounts.fraud[name] for name in accounts.fraud.keys() - found.keys()} }"
    named = sum(accounts.fraud[name] in found[name] for name in caught)
    assert named / len(caught) >= 0.95, "the reason is the fraud that was done"


def test_lock_commands(table: Table, accounts: synthetic.Accounts) -> None:
    commands = risk.commands(risk.suspects(risk.events(table(accounts.events))))
    check_message(commands.schema, has_address=False)
    first, again = (sorted(row["message_id"] for row in commands.collect()) for _ in range(2))
    assert first == again
    assert len(set(first)) == len(first)
    row = commands.orderBy("message_id").first()
    assert row is not None
    assert (row["exchange"], row["routing_key"], row["type"]) == ("weft.commands", "account.lock", "lock-account")
    body = json.loads(bytes(row["body"]))
    assert body["account"] in accounts.fraud
    assert body["reasons"]


def test_bodies_that_are_no_event(table: Table) -> None:
    rows = synthetic.rows("s", 3, body=[b"\xff\x00", b'{"kind": "payment"}', b"[]"])
    assertDataFrameEqual(risk.events(table(rows)).select("account"), [])
