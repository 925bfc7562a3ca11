"""Signed messages: what was signed is believed, through nodes and hops; what was changed, or is another's, is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import weft
from weft.client.signing import ALGORITHM, KEY_ID, SIGNATURE, Ed25519, Hmac, Signer
from weft.config import load
from weft.model.errors import Untrusted

SECRET = b"s" * 32
ROUTE = """
[[links]]
name = "peer"
urls = ["amqp://127.0.0.1:{port}"]

[[routes]]
link = "peer"
kind = "queue"
queue = "near"
exchange = "amq.direct"
"""
DEAD = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}


class Forger(Hmac):
    """Puts a footer of its choice behind whatever it sends, and believes everything."""

    def __init__(self, footer: dict[str, Any]) -> None:
        super().__init__(b"any", "forger")
        self._footer = footer

    def footer(self, bare: bytes) -> dict[str, Any] | None:
        return self._footer

    def problem(self, delivery: object) -> str | None:
        return None


def public(private: bytes) -> bytes:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def pairs() -> list[tuple[Signer, Signer]]:
    alice, bob = b"a" * 32, b"b" * 32
    return [
        (Hmac(SECRET, "k"), Hmac(SECRET, "k")),
        (Hmac(SECRET, "new"), Hmac(b"own", "own", known={"new": SECRET, "old": b"x"})),
        (Ed25519(alice, "alice"), Ed25519(known={"alice": public(alice)})),
        (Ed25519(alice, "alice"), Ed25519(bob, "bob", known={"alice": public(alice)})),
    ]


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("body", [{"a": 1}, b"x" * 300_000])
async def test_what_was_signed_is_believed(node: weft.Node, url: str, number: int, body: object) -> None:
    ours, theirs = pairs()[number]
    async with weft.connect(url, signer=ours) as sender, weft.connect(url, signer=theirs) as receiver:
        await sender.send("signed", body, subject="s", headers={"n": 1}, annotations={"x-opt-note": 1}, priority=7)
        async with receiver.receive("signed") as messages:
            message = await anext(messages)
            assert (message.body, message.signed_by, messages.refused) == (body, ours.key_id, 0)


async def refused(node: weft.Node, url: str, reader: Signer) -> tuple[list[object], object]:
    """(what a reader gets of queue `work` before the last, what went to the dead letters)."""
    async with weft.connect(url, signer=Hmac(SECRET, "k")) as sender, weft.connect(url, signer=reader) as receiver:
        await sender.send("work", b"the last")
        async with receiver.receive("work", timeout_s=30) as messages:
            got = [(await anext(messages)).body]
            assert messages.refused == 1
    async with weft.connect(url) as other, other.receive("dead", timeout_s=30) as dead:
        return got, (await anext(dead)).body


@pytest.mark.parametrize("case", ["unsigned", "changed", "other key", "unknown key", "other algorithm", "no signature"])
async def test_what_is_not_signed_as_it_should_is_refused(node: weft.Node, url: str, case: str) -> None:
    node.declare_queue("dead")
    node.declare_queue("work", arguments=DEAD)
    async with weft.connect(url, signer=Hmac(SECRET, "k")) as sender, weft.connect(url) as thief:
        await sender.send("original", b"pay 10", message_id="1")
        async with thief.receive("original") as messages:
            footer = (await anext(messages)).delivery.footer
    signers: dict[str, Signer | None] = {
        "unsigned": None,
        "changed": Forger(footer),
        "other key": Hmac(b"t" * 32, "k"),
        "unknown key": Hmac(SECRET, "m"),
        "other algorithm": Forger(footer | {ALGORITHM: "none"}),
        "no signature": Forger({KEY_ID: "k", ALGORITHM: "hmac-sha256", SIGNATURE: "text"}),
    }
    async with weft.connect(url, signer=signers[case]) as forger:
        await forger.send("work", b"pay 1000", message_id="1")
    assert await refused(node, url, Hmac(SECRET, "k")) == ([b"the last"], b"pay 1000")


async def test_the_same_words_behind_the_same_footer_are_the_same_message(node: weft.Node, url: str) -> None:
    """The forger's own test: it is the content that fails above, not the way it is sent."""
    async with weft.connect(url, signer=Hmac(SECRET, "k")) as sender, weft.connect(url) as thief:
        await sender.send("original", b"pay 10", message_id="1")
        async with thief.receive("original") as messages:
            message = await anext(messages)
            footer, bare = message.delivery.footer, message.delivery.bare
    async with weft.connect(url, signer=Forger(footer)) as forger:
        await forger.send("copy", b"pay 10", message_id="1", durable=False, annotations={"x-opt-more": "words"})
    async with weft.connect(url, signer=Hmac(SECRET, "k")) as reader, reader.receive("copy", timeout_s=30) as messages:
        message = await anext(messages)
        assert message.delivery.bare == bare
        assert message.annotations["x-opt-more"] == "words"


async def test_requests_and_replies_are_signed(node: weft.Node, url: str) -> None:
    async with (
        weft.connect(url, signer=Hmac(SECRET, "k")) as server,
        weft.connect(url, signer=Hmac(SECRET, "k")) as asker,
    ):

        @server.service("double")
        def double(request: weft.Message) -> int:
            return int(request.body) * 2

        await double.start()
        assert (await asker.request("double", 21, timeout_s=30)).body == 42
        async with weft.connect(url, signer=Hmac(b"other", "k")) as stranger:
            await stranger.send("double", 4, reply_to="nowhere")  # refused, and served to nobody
        assert (await asker.request("double", 1, timeout_s=30)).body == 2
        assert double.served == 2


async def test_a_reply_that_is_not_signed_is_refused(node: weft.Node, url: str) -> None:
    async with weft.connect(url) as server, weft.connect(url, signer=Hmac(SECRET, "k")) as asker:

        @server.service("double")
        def double(request: weft.Message) -> int:
            return int(request.body) * 2

        await double.start()
        with pytest.raises(Untrusted, match="the reply is not signed"):
            await asker.request("double", 21, timeout_s=30)


async def test_a_signature_passes_a_hop_and_what_nodes_add_does_not_break_it(tmp_path: Path) -> None:
    async with weft.Node(name="sign-here", listen=["127.0.0.1:0"]) as here:
        here.declare_queue("near")
        file = tmp_path / "there.toml"
        file.write_text(ROUTE.format(port=here.ports[0]))
        async with weft.Node(name="sign-there", configuration=load(file)) as there:
            there.declare_queue("far")
            there.bind("amq.direct", "far", "near")
            async with weft.connect("weft+memory:sign-here", signer=Hmac(SECRET, "k")) as sender:
                await sender.send("near", {"pay": 10}, headers={"n": 1})
            reader = weft.connect("weft+memory:sign-there", signer=Hmac(SECRET, "k"))
            async with reader, reader.receive("far", timeout_s=30) as messages:
                message = await anext(messages)
                assert (message.body, message.signed_by) == ({"pay": 10}, "k")
                assert "x-opt-weft-trace" in message.annotations


def test_without_a_private_key_nothing_is_signed() -> None:
    reader = Ed25519(known={})
    assert reader.footer(b"bare") is None
    with pytest.raises(ValueError, match="no private key"):
        reader.sign(b"")


def test_a_key_that_is_none_is_told() -> None:
    with pytest.raises(weft.ConfigError, match="32 bytes"):
        Ed25519(b"short")
    with pytest.raises(weft.ConfigError, match="32 bytes"):
        Ed25519(known={"them": b"short"})
