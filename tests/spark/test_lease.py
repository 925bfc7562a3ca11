"""One run at a time on a lake that is a URL: who holds it is renewed, who left it behind is followed."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from weft.model.errors import ConfigError, Unavailable
from weft.pipeline import lease as leases
from weft.pipeline.lease import Lease


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "RENEW_S", 0.05)
    monkeypatch.setattr(leases, "LOOK_S", 0.01)
    monkeypatch.setattr(leases, "WATCH_S", 60.0)


def lease(spark: SparkSession, folder: Path, told: list[str] | None = None) -> Lease:
    return Lease(spark, f"file://{folder}", say=(told if told is not None else []).append)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "running").glob("*.lease"))


def test_a_second_run_is_refused_while_the_first_renews(spark: SparkSession, tmp_path: Path) -> None:
    told: list[str] = []
    with lease(spark, tmp_path) as held:
        with pytest.raises(ConfigError, match=r"another run uses the lake file://.* \(.*, process \d+\)"):
            lease(spark, tmp_path, told).__enter__()
        held.check()
    assert len(told) == 1
    assert "still renewed" in told[0]
    assert names(tmp_path) == [], "who ends leaves nothing behind"


def test_a_lease_that_nobody_renews_is_taken_over(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "WATCH_S", 0.1)
    (tmp_path / "running").mkdir()
    (tmp_path / "running" / f"{7:012}.lease").write_text("elsewhere, process 1\n3\n")
    with lease(spark, tmp_path):
        assert names(tmp_path) == [f"{8:012}.lease"]


def test_of_two_who_follow_one_succeeds(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    late = lease(spark, tmp_path)
    # It looked before the other one had made its lease.
    monkeypatch.setattr(late, "_newest", lambda: 0)
    with lease(spark, tmp_path), pytest.raises(ConfigError, match="another run uses the lake"):
        late.__enter__()


def test_who_was_taken_over_stops(spark: SparkSession, tmp_path: Path) -> None:
    with lease(spark, tmp_path) as held:
        (tmp_path / "running" / f"{2:012}.lease").write_text("elsewhere, process 1\n0\n")
        held._renewer.join(60)
        with pytest.raises(Unavailable, match="taken over the lake"):
            held.check()
    assert names(tmp_path)[-1] == f"{2:012}.lease", "the other one's stays"


def test_a_lake_that_cannot_be_reached_is_one_line(spark: SparkSession) -> None:
    with pytest.raises(Unavailable, match="lake file:///proc/nowhere/lake: ") as told:
        Lease(spark, "file:///proc/nowhere/lake").__enter__()
    assert "\n" not in str(told.value)
