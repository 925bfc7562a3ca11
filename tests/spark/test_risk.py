"""Risk: injected fraud is found, honest accounts are left alone, and a lock is sent once."""

from __future__ import annotations

import json
from collections.abc import Callable

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.testing import assertDataFrameEqual

from weft.pipeline import risk, synthetic
from weft.spark.schema import check_message

Table = Callable[[pa.Table], DataFrame]


@pytest.fixture(scope="module")
def accounts() -> synthetic.Accounts:
    return synthetic.accounts(300, frauds=40, seed=11)


@pytest.fixture(scope="module")
def suspects(spark: SparkSession, accounts: synthetic.Accounts) -> DataFrame:
    """Found once for all tests that look at them."""
    return risk.suspects(risk.events(spark.createDataFrame(accounts.events))).cache()


def test_precision_and_recall(suspects: DataFrame, accounts: synthetic.Accounts) -> None:
    found = {row["account"]: row["reasons"] for row in suspects.collect()}
    caught = accounts.fraud.keys() & found.keys()
    precision, recall = len(caught) / len(found), len(caught) / len(accounts.fraud)
    assert precision >= 0.95, f"locked though honest: {sorted(found.keys() - accounts.fraud.keys())}"
    assert recall >= 0.95, f"missed: { {name: accounts.fraud[name] for name in accounts.fraud.keys() - found.keys()} }"
    named = sum(accounts.fraud[name] in found[name] for name in caught)
    assert named / len(caught) >= 0.95, "the reason is the fraud that was done"


def test_lock_commands(table: Table, suspects: DataFrame, accounts: synthetic.Accounts) -> None:
    commands = risk.commands(suspects)
    check_message(commands.schema, has_address=False)
    anew = risk.commands(risk.suspects(risk.events(table(accounts.events))))
    first, again = (sorted(row["message_id"] for row in each.collect()) for each in (commands, anew))
    assert first == again
    assert len(set(first)) == len(first)
    row = commands.orderBy("message_id").first()
    assert row is not None
    assert (row["exchange"], row["routing_key"], row["type"]) == ("weft.commands", "account.lock", "lock-account")
    body = json.loads(bytes(row["body"]))
    assert body["account"] in accounts.fraud
    assert body["reasons"]


def test_alerts_are_events(suspects: DataFrame) -> None:
    rows = risk.answers(suspects).where("exchange = 'weft.alerts'").collect()
    assert {row["message_id"] for row in rows} == {row["message_id"] for row in risk.alerts(suspects).collect()}
    assert len({row["message_id"] for row in rows}) == len(rows) == risk.commands(suspects).count()
    for row in rows:
        body = json.loads(bytes(row["body"]))
        assert list(body) == [
            "version", "number", "class", "kind", "severity", "object", "vhost", "node", "time_ms", "text", "values",
        ]  # fmt: skip
        assert (body["version"], body["class"], body["kind"], body["vhost"]) == (1, "account", "suspected", None)
        assert row["routing_key"] == f"account.suspected.warning.{body['object']}.pipeline"
        assert all(reason in body["text"] for reason in body["values"]["reasons"])


def test_an_account_is_one_word_of_a_key(table: Table) -> None:
    words = {"a.b.c": "a_b_c", "": "-", "ü" * 90: "ü" * 30}
    paid = {"kind": "payment", "amount": 1.0, "country": "SE"}
    bodies = [json.dumps({"account": account, **paid}).encode() for account in words for _ in range(20)]
    rows = table(synthetic.rows("s", len(bodies), body=bodies))
    alerts = risk.alerts(risk.suspects(risk.events(rows))).collect()
    told = {json.loads(bytes(alert["body"]))["object"]: alert["routing_key"] for alert in alerts}
    assert told == {account: f"account.suspected.warning.{word}.pipeline" for account, word in words.items()}
    assert all(len(key.encode()) <= 255 for key in told.values())


def test_bodies_that_are_no_event(table: Table) -> None:
    rows = synthetic.rows("s", 3, body=[b"\xff\x00", b'{"kind": "payment"}', b"[]"])
    assertDataFrameEqual(risk.events(table(rows)).select("account"), [])


def test_times_and_amounts_that_cannot_be(table: Table) -> None:
    """Whoever sets them is found as if they had set none, and hides nobody else."""
    day_us, count = 86_400_000_000, 15
    arrived = [synthetic.START_US + number * 1_000_000 for number in range(count)]
    invented = {
        "future": [time + number * day_us for number, time in enumerate(arrived, 1)],
        "past": [time - number * 2 * day_us for number, time in enumerate(arrived, 1)],
        "honest": arrived,
    }
    accounts = [account for account in invented for _ in range(count)]
    bodies = [json.dumps({"account": account, "kind": "payment", "amount": "NaN"}).encode() for account in accounts]
    times = [time for each in invented.values() for time in each]
    found = risk.events(
        table(synthetic.rows("s", len(bodies), enqueue_time=arrived * 3, creation_time=times, body=bodies))
    )
    assert {row["account"] for row in risk.suspects(found).collect()} == set(invented)
    assert found.where("amount IS NOT NULL").count() == 0
