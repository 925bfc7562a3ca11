"""The commands of the talk, to the letter, against a gateway and a remote node."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from system.fabrics import Fabric, until

SLIDES = """
qpid-config -a localhost:{gateway} add exchange direct service_gateway.direct
qpid-config -a localhost:{remote} add exchange direct service_impl.direct
qpid-config -a localhost:{gateway} add queue user.lifecycle.request
qpid-config -a localhost:{remote} add queue user.lifecycle.request.impl
qpid-route queue add localhost:{remote} localhost:{gateway} service_impl.direct user.lifecycle.request
"""
AROUND = """
qpid-config -a localhost:{gateway} bind service_gateway.direct user.lifecycle.request user.lifecycle.request
qpid-config -a localhost:{remote} bind service_impl.direct user.lifecycle.request.impl user.lifecycle.request
qpid-config -a localhost:{gateway} add exchange direct service_res.direct --durable
qpid-config -a localhost:{remote} add exchange direct service_res.direct --durable
"""
RESPONSES = "qpid-route -v dynamic add localhost:{remote} localhost:{gateway} service_res.direct --durable"


@pytest.fixture(scope="module")
def fabric(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fabric]:
    with Fabric(tmp_path_factory.mktemp("slides")) as fabric:
        for name in ("gateway", "remote"):
            fabric.add(name)
        yield fabric


@pytest.mark.slow
def test_the_slides(fabric: Fabric) -> None:
    for line in SLIDES.split("\n")[1:-1]:
        fabric.command(line)
    for line in AROUND.split("\n")[1:-1]:
        fabric.command(line)
    assert "Creating dynamic route" in fabric.command(RESPONSES)
    assert re.search(
        r"^direct +service_impl\.direct ", fabric.command("qpid-config -a localhost:{remote} exchanges"), re.M
    )
    queues = fabric.command("qpid-config -a localhost:{gateway} queues")
    assert "user.lifecycle.request " in queues
    assert "user.lifecycle.request.impl" not in queues
    fabric.channel("gateway").exchange_declare("service_gateway.direct", passive=True)
    fabric.channel("remote").queue_declare("user.lifecycle.request.impl", passive=True)
    assert "exists already" in fabric.command(SLIDES.split("\n")[3], code=1)
    assert "Duplicate Route" in fabric.command(RESPONSES, code=1)
    fabric.command(RESPONSES + " -q")
    # The other way over the same link: the remote's replies for clients of the gateway.
    fabric.command("qpid-route -s dynamic add localhost:{gateway} localhost:{remote} service_res.direct")
    assert "not permitted" in fabric.command("qpid-route link add localhost:{remote} localhost:{remote}", code=1)
    assert "user.lifecycle.request" in fabric.command("qpid-route route list localhost:{remote}")
    fabric.until_flowing("remote", 3)
    drawn = fabric.command("qpid-route route map localhost:{gateway}")
    assert "-> dynamic service_res.direct" in drawn
    assert "<- dynamic service_res.direct" in drawn

    gateway, remote = fabric.channel("gateway", confirms=True), fabric.channel("remote")
    gateway.basic_publish("service_gateway.direct", "user.lifecycle.request", b"hello")
    until(lambda: remote.basic_get("user.lifecycle.request.impl", auto_ack=True)[2] == b"hello")

    remote.queue_declare("replies", durable=True)
    remote.queue_bind("replies", "service_res.direct", "container-7")

    def reply_arrives() -> bool:
        gateway.basic_publish("service_res.direct", "container-7", b"welcome")
        return bool(remote.basic_get("replies", auto_ack=True)[2] == b"welcome")

    until(reply_arrives)
    # What is durable comes back with either side; the queue route of the slide was made without --durable.
    fabric.kill("gateway")
    fabric.restart("gateway")
    fabric.kill("remote")
    fabric.restart("remote")
    until(lambda: [(row["kind"], row["state"]) for row in fabric.rows("remote", "route")] == [("dynamic", "flowing")])
    fabric.command("qpid-route dynamic del localhost:{remote} localhost:{gateway} service_res.direct -e --durable")
    assert fabric.rows("remote", "link") == []


@pytest.mark.slow
def test_weft_words_do_the_same(fabric: Fabric) -> None:
    fabric.command("weft exchange --url amqp://localhost:{remote} add direct service_impl.direct")
    fabric.command("weft queue --url amqp://localhost:{remote} add work")
    fabric.command("weft exchange --url amqp://localhost:{remote} bind service_impl.direct work user.request")
    fabric.command("weft queue --url amqp://localhost:{gateway} add user.request")
    fabric.command("weft link --url amqp://localhost:{remote} add up amqp://localhost:{gateway} --role gateway")
    fabric.command(
        "weft route --url amqp://localhost:{remote} add queue up --exchange service_impl.direct --queue user.request"
        " --key user.request --name r"
    )
    fabric.until_flowing("remote")
    assert "operational" in fabric.command("weft link --url amqp://localhost:{remote} list")
    channel = fabric.channel("gateway", confirms=True)
    channel.basic_publish("", "user.request", b"hello")
    remote = fabric.channel("remote")
    until(lambda: remote.basic_get("work", auto_ack=True)[2] == b"hello")
    assert "carries routes" in fabric.command("weft link --url amqp://localhost:{remote} del up", code=1)
    fabric.command("weft route --url amqp://localhost:{remote} del r")
    fabric.command("weft link --url amqp://localhost:{remote} del up")
    assert "not empty" in _full_queue_is_kept(fabric)


def _full_queue_is_kept(fabric: Fabric) -> str:
    fabric.channel("gateway", confirms=True).basic_publish("", "user.request", b"kept")
    return fabric.command("qpid-config -a localhost:{gateway} del queue user.request", code=1)
