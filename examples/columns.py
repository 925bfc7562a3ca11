"""A stream as columns: messages go in one by one, come out as an Arrow table, and the node need not even run.

Publishes orders to a topic exchange, keeps them in a stream, reads it from inside the node and then from its files.
"""

import asyncio
import tempfile

import pyarrow as pa
import pyarrow.compute as pc

import weft
from weft.log import open_log

COLUMNS = ["offset", "enqueue_time", "routing_key", "body_bytes", "headers"]


async def publish(node: weft.Node) -> None:
    """A hundred orders of three kinds."""
    node.declare_exchange("orders", "topic", durable=True)
    node.declare_queue("all-orders", durable=True, arguments={"x-queue-type": "stream"})
    node.bind("orders", "all-orders", "#")
    for number in range(100):
        kind = ("coffee", "tea", "cake")[number % 3]
        await node.send(f"orders/{kind}.new", f"order {number}", delivery_mode=2, headers={"table": number % 7})


def tell(title: str, table: pa.Table) -> None:
    """Count and measure by routing key."""
    print(f"{title}: {table.num_rows} messages, offsets {pc.min(table['offset'])} to {pc.max(table['offset'])}")
    for row in table.group_by("routing_key").aggregate([("body_bytes", "sum"), ("offset", "count")]).to_pylist():
        print(f"  {row['routing_key']:<12}{row['offset_count']:>4} messages{row['body_bytes_sum']:>6} bytes")


async def main() -> None:
    """In the node first, then without it."""
    with tempfile.TemporaryDirectory() as folder:
        async with weft.Node(name="shop", data_dir=folder) as node:
            await publish(node)
            tell("in the node", pa.table(node.read_log("all-orders", columns=COLUMNS)))
        log = open_log(folder, "/", "all-orders", origin="shop")
        tell("from the files", pa.table(log.read(columns=COLUMNS)))


asyncio.run(main())
