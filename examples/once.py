"""A publisher that is not sure sends again; the queue takes each order once.

Run it: it starts a node of its own in a folder of its own, kills it in the middle, and counts.
"""

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress

import pika
from pika.exceptions import AMQPError

ORDERS = [f"order-{number}" for number in range(20)]


def start(folder: str) -> tuple[subprocess.Popen[str], int]:
    command = [sys.executable, "-m", "weft", "up", "--listen", "127.0.0.1:0", "--data-dir", folder]
    node = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert node.stdout is not None
    port = 0
    for line in node.stdout:
        if line.startswith("listening on"):
            port = int(line.split()[2].rpartition(":")[2])
        if line.startswith("ready"):
            return node, port
    raise SystemExit("the node did not start")


def publish(port: int, orders: list[str]) -> pika.BlockingConnection:
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("orders", durable=True, arguments={"x-barrier": "message-id"})
    for order in orders:
        channel.basic_publish("", "orders", order, pika.BasicProperties(delivery_mode=2, message_id=order))
    return connection


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        node, port = start(folder)
        connection = publish(port, ORDERS[:15])
        os.kill(node.pid, signal.SIGKILL)
        node.wait()
        with suppress(AMQPError):
            connection.close()
        node, port = start(folder)
        try:
            # Nobody remembers how far it came: everything is sent again.
            connection = publish(port, ORDERS)
            channel = connection.channel()
            found = []
            while (got := channel.basic_get("orders", auto_ack=True))[0] is not None:
                found.append(got[2].decode())
            print(f"{15 + len(ORDERS)} orders were sent and confirmed, {len(found)} are in the queue")
            assert found == ORDERS
            connection.close()
        finally:
            node.terminate()
            node.wait()


if __name__ == "__main__":
    main()
