"""Signed messages: what was changed on its way, or comes from somebody else, is refused."""

import asyncio
import logging

import weft
from weft.client.signing import Hmac


async def main() -> None:
    """One client has the key, another has not."""
    signer = Hmac(b"a secret that both ends share, and nobody between them", "payments")
    async with weft.Node(name="example"):
        async with weft.connect("weft+memory:example") as stranger:
            await stranger.send("payments", {"pay": 1_000_000})
        async with weft.connect("weft+memory:example", signer=signer) as bank:
            await bank.send("payments", {"pay": 10})
            async with bank.receive("payments") as payments:
                message = await anext(payments)
                print(message.body, "signed by", message.signed_by, "- refused:", payments.refused)


logging.getLogger("weft.client").setLevel(logging.ERROR)
asyncio.run(main())
