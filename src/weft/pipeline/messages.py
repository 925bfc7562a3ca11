"""Results as messages: the one shape in which every job answers into the fabric.

Owns how a row becomes a message of the writer's schema: JSON body with every key in it, type, an id made of its
content. It must never send: that is `weft.spark`'s writer.
Rule: the same result has the same id, whoever computes it and however often.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

APP = "weft-pipeline"


def message(exchange: str, routing_key: Column, *, kind: str, identity: Column, body: Column) -> Column:
    """A row as a struct of the writer's schema."""
    return F.struct(
        F.lit(exchange).alias("exchange"),
        routing_key.alias("routing_key"),
        F.lit(kind).alias("type"),
        identity.alias("message_id"),
        F.lit("application/json").alias("content_type"),
        F.lit(APP).alias("app_id"),
        F.lit(True).alias("durable"),
        F.to_json(body, {"ignoreNullFields": "false"}).cast("binary").alias("body"),
    )


def as_messages(rows: DataFrame, *messages: Column) -> DataFrame:
    """These messages of each row that came in, in one pass over the rows."""
    return rows.select(F.inline(F.array(*messages)))
