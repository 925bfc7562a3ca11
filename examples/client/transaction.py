"""The engine face: take a message and send another, both or neither."""

import asyncio

import weft


async def main() -> None:
    """A transaction on a session of its own, with credit given by hand."""
    async with weft.Node(name="example"), weft.connect("weft+memory:example") as fabric:
        await fabric.send("incoming", "money")
        async with fabric.session() as session, session.receiver("incoming") as incoming:
            outgoing = await session.sender("outgoing").ready()
            incoming.grant(1)
            async with session.transaction() as transaction:
                message = await anext(incoming)
                transaction.accept(message)
                await transaction.send(outgoing, b"more " + message.data)
        async with fabric.receive("outgoing") as results:
            print((await anext(results)).data.decode())


asyncio.run(main())
