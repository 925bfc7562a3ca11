"""A gateway of your own: files of a folder become messages, each once, however often the gateway dies.

A side is an object with four or five methods (docs/guides/gateways.md). This one is a source; the target is an address.
"""

import asyncio
import contextlib
import tempfile
from pathlib import Path

import weft
from weft.gateway import Bridge, Letter, open_target


class Folder:
    """Every file is a letter, called as the file is."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._given: set[str] = set()

    async def __aenter__(self) -> "Folder":
        self._given.clear()  # what was not done is given again
        return self

    async def __aexit__(self, *_exc: object) -> None:
        pass

    async def pull(self, count_max: int) -> list[Letter]:
        while True:
            files = [file for file in sorted(self._path.iterdir()) if file.name not in self._given][:count_max]
            if files:
                self._given.update(file.name for file in files)
                return [Letter(file.name, file.read_bytes(), token=file) for file in files]
            await asyncio.sleep(0.1)

    async def done(self, letters: list[Letter]) -> None:
        for letter in letters:
            letter.token.unlink()

    async def refuse(self, letter: Letter, why: str) -> None:
        print(f"{letter.id} is set aside: {why}")
        letter.token.rename(letter.token.with_suffix(".refused"))


async def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number in range(10):
            (folder / f"order-{number}").write_text(f"order {number}")
        async with weft.Node(name="desk") as node:
            node.declare_queue("orders", arguments={"x-barrier": "message-id"})
            bridge = asyncio.create_task(Bridge(Folder(folder), open_target("weft+memory:desk#orders")).run())
            taken = 0
            async for message in node.receive("orders"):
                print(message.properties["message_id"], message.body.decode())
                message.accept()
                taken += 1
                if taken == 10:
                    break
            bridge.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await bridge


asyncio.run(main())
