"""Request and reply: a question with an address for the answer and a number to know it by."""

import asyncio

import weft


async def serve(node: weft.Node) -> None:
    """Answers whoever asks."""
    async for question in node.receive("square"):
        answer = str(int(question.body) ** 2)
        properties = question.properties
        await node.send(properties["reply_to"], answer, correlation_id=properties["correlation_id"])
        question.accept()


async def main() -> None:
    """Three questions at once; the answers are told apart by their number."""
    async with weft.Node() as node:
        server = asyncio.create_task(serve(node))
        for number in (2, 3, 4):
            await node.send("square", str(number), reply_to="answers", correlation_id=f"question {number}")
        async with node.receive("answers") as answers:
            for _ in range(3):
                answer = await anext(answers)
                print(f"{answer.properties['correlation_id']}: {answer.body.decode()}")
                answer.accept()
        server.cancel()


asyncio.run(main())
