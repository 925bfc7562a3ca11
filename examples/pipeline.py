"""A stream in Spark: a node, some payments, two jobs over them, and a lock command back in the node.

Needs `pip install 'weft[spark]'` and Java 17. On the command line it is `weft pipeline run`.
"""

import asyncio
import json
import tempfile
from pathlib import Path

import weft
from weft.pipeline import risk, traffic
from weft.spark import session


async def publish(node: weft.Node) -> None:
    """Twenty payments in a moment by one account, and a few by others."""
    node.declare_queue("payments", arguments={"x-queue-type": "stream"})
    for number in range(40):
        account = "mallory" if number % 2 else f"customer-{number}"
        event = {"account": account, "kind": "payment", "amount": 12.5, "country": "SE"}
        await node.send("payments", json.dumps(event), delivery_mode=2, app_id="shop")


async def main() -> None:
    """Fill a stream, read it in Spark, send what follows from it."""
    with tempfile.TemporaryDirectory() as folder:
        data_dir = Path(folder) / "edge"
        async with weft.Node(name="edge", data_dir=data_dir, listen="127.0.0.1:0") as node:
            await publish(node)
            node.declare_queue("locks")
            spark = await asyncio.to_thread(session, "example")
            rows = spark.read.format("weft").options(path=str(data_dir), stream="payments").load()

            sums = await asyncio.to_thread(traffic.results(traffic.partials(rows)).collect)
            print(f"{sum(row['messages'] for row in sums)} messages, {sum(row['bytes'] for row in sums)} bytes")

            locks = risk.commands(risk.suspects(risk.events(rows))).drop("exchange", "routing_key")
            url = f"amqp://127.0.0.1:{node.ports[0]}"
            save = locks.write.format("weft").options(url=url, address="locks").mode("append").save
            await asyncio.to_thread(save)

            async with node.receive("locks") as receiver:
                message = await anext(receiver)
                command = json.loads(message.body)
                print(f"{message.properties['type']}: {command['account']}, because of {', '.join(command['reasons'])}")
                message.accept()
            spark.stop()


asyncio.run(main())
