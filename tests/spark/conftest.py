"""One Spark session for all tests of this folder: starting one costs more than most of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from weft.spark import session

QUICK = {"spark.sql.codegen.wholeStage": "false", "spark.sql.adaptive.enabled": "false"}
"""Queries here are many and tiny: compiling each of them would take longer than running it."""


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    # One compiler is enough for queries that run once.
    made = session("tests", conf=QUICK, java_options="-XX:TieredStopAtLevel=1")
    yield made
    made.stop()


@pytest.fixture
def table(spark: SparkSession) -> Callable[[pa.Table], DataFrame]:
    """An Arrow table as a DataFrame."""
    return spark.createDataFrame
