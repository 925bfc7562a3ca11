"""Results as messages: the one shape in which every job answers into the fabric.

Owns how a row becomes a message of the writer's schema: JSON body with every key in it, type, an id made of its
content. It must never send: that is `weft.spark`'s writer.
Rule: the same result has the same id, whoever computes it and however often.
"""

from __future__ import annotations

from pyspark.sql import DataFrame

APP = "weft-pipeline"


# In SQL, since a batch is planned anew each time and every object of an expression is a question to the JVM: an answer
# took four hundred of them, as long as it took to compute.


def message(exchange: str, routing_key: str, *, kind: str, identity: str, body: str) -> str:
    """A row as a struct of the writer's schema; key, identity and body are expressions of SQL."""
    return (
        f"struct('{exchange}' AS exchange, {routing_key} AS routing_key, '{kind}' AS type, {identity} AS message_id,"
        f" 'application/json' AS content_type, '{APP}' AS app_id, true AS durable,"
        f" CAST(to_json({body}, map('ignoreNullFields', 'false')) AS BINARY) AS body)"
    )


def as_messages(rows: DataFrame, *messages: str) -> DataFrame:
    """These messages of each row that came in, in one pass over the rows."""
    return rows.selectExpr(f"inline(array({', '.join(messages)}))")
