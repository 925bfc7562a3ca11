"""Topology: who talks to whom over which path, and which node nobody could do without.

Owns the edges that messages' traces show, the conversations between senders and addresses, and the search for
single points of failure. Rows of streams come in; small tables go out.
It must never ask a node: what is not in a trace or an event did not happen here.
A single point of failure is an articulation point of the graph of paths (Tarjan).
"""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from weft.spark.schema import json_body

COLUMNS = ("enqueue_time", "origin", "exchange", "routing_key", "app_id", "trace", "body_bytes")
EVENT_COLUMNS = ("routing_key", "body")
NODES_MAX = 100_000
"""Edges that are brought to the driver to look for single points of failure."""


def conversations(rows: DataFrame) -> DataFrame:
    """Sender, first node and address, with the path between: messages and bytes."""
    path = F.array_join(F.when(F.size("trace") > 0, F.col("trace")).otherwise(F.array("origin")), " > ")
    absent = F.lit("")
    return rows.groupBy(
        F.coalesce("app_id", absent).alias("sender"),
        F.coalesce("exchange", absent).alias("exchange"),
        F.coalesce("routing_key", absent).alias("address"),
        F.coalesce(path, absent).alias("path"),
    ).agg(F.count("*").alias("messages"), F.sum(F.coalesce("body_bytes", F.lit(0))).alias("bytes"))


def merge_conversations(talks: DataFrame) -> DataFrame:
    """Conversations of any number of batches as one table."""
    return talks.groupBy("sender", "exchange", "address", "path").agg(
        F.sum("messages").alias("messages"), F.sum("bytes").alias("bytes")
    )


def edges(talks: DataFrame) -> DataFrame:
    """Hops between nodes, summed over conversations of any number of batches."""
    nodes = F.split("path", " > ")
    pairs = F.arrays_zip(
        F.slice(nodes, 1, F.size(nodes) - 1).alias("a"), F.slice(nodes, 2, F.size(nodes) - 1).alias("b")
    )
    hops = talks.where(F.size(nodes) > 1).select(F.explode(pairs).alias("hop"), "messages", "bytes")
    return hops.groupBy(F.col("hop.a").alias("source"), F.col("hop.b").alias("target")).agg(
        F.sum("messages").alias("messages"), F.sum("bytes").alias("bytes")
    )


def connections(rows: DataFrame) -> DataFrame:
    """Connections that were opened and closed per node, from the nodes' own events."""
    event = json_body("class STRING, kind STRING, node STRING")
    told = rows.select(event.alias("event")).select("event.*").where("class = 'connection'")
    return told.groupBy("node").agg(
        F.count_if(F.col("kind") == "opened").alias("opened"), F.count_if(F.col("kind") == "closed").alias("closed")
    )


def merge_connections(counted: DataFrame) -> DataFrame:
    """Connections per node over any number of batches, and how many are open; those from before are not known."""
    summed = counted.groupBy("node").agg(F.sum("opened").alias("opened"), F.sum("closed").alias("closed"))
    return summed.withColumn("open", F.greatest(F.col("opened") - F.col("closed"), F.lit(0)))


def single_points(hops: DataFrame) -> list[str]:
    """Nodes whose end would part the network, in order of their names."""
    found = hops.select("source", "target").distinct().limit(NODES_MAX).collect()
    return articulation_points((row["source"], row["target"]) for row in found)


def articulation_points(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """Tarjan's search without recursion, since a chain of nodes may be longer than Python's stack."""
    near: dict[str, list[str]] = {}
    for a, b in sorted(set(pairs)):
        if a != b:
            near.setdefault(a, []).append(b)
            near.setdefault(b, []).append(a)
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    found: set[str] = set()
    for root, neighbours in near.items():
        if root in order:
            continue
        order[root] = low[root] = len(order)
        roots_children = 0
        stack = [(root, root, iter(neighbours))]
        while stack:
            node, parent, rest = stack[-1]
            child = next(rest, None)
            if child is None:
                stack.pop()
                if stack:
                    above = stack[-1][0]
                    low[above] = min(low[above], low[node])
                    if above != root and low[node] >= order[above]:
                        found.add(above)
            elif child not in order:
                order[child] = low[child] = len(order)
                roots_children += node == root
                stack.append((child, node, iter(near[child])))
            elif child != parent:
                low[node] = min(low[node], order[child])
        if roots_children > 1:
            found.add(root)
    return sorted(found)
