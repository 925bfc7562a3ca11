"""One transaction over two nodes: an order leaves one and a shipment arrives at the other, or neither."""

import asyncio

import weft


async def main() -> None:
    """Take an order at the shop and ship it from the store; then fail at it."""
    async with (
        weft.Node(name="shop"),
        weft.Node(name="store"),
        weft.connect("weft+memory:shop") as shop,
        weft.connect("weft+memory:store") as store,
        weft.distributed("orders", shop, store) as both,
    ):
        await shop.send_many("orders", ["a lamp", "a chair"])
        orders = both.session(shop).receiver("orders", window=1)
        shipments = both.session(store).sender("shipments")
        async with both.transaction() as work:
            order = await anext(orders)
            work[shop].accept(order)
            await work[store].send(shipments, order.data)
        try:
            async with both.transaction() as work:
                order = await anext(orders)
                work[shop].accept(order)
                await work[store].send(shipments, order.data)
                raise ValueError("the chair is broken")
        except ValueError as error:
            print("rolled back at both:", error)
        await orders.close()
        print("shipped:", await everything(store, "shipments"))
        print("still to do:", await everything(shop, "orders"))


async def everything(fabric: weft.Fabric, queue: str) -> list[str]:
    """What waits in a queue."""
    async with fabric.receive(queue) as messages:
        found: list[str] = []
        while (message := await messages.next(0.2)) is not None:
            found.append(message.data.decode())
        return found


asyncio.run(main())
