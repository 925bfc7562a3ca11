"""Direct reply-to: answers that come back on the requester's channel without any queue.

Owns the pseudo queue `amq.rabbitmq.reply-to` as libraries use it for calls. pika is the client and RabbitMQ the
reference. Nothing is stored: an answer with nobody waiting is lost, and mandatory says so. Rules: RabbitMQ's page on
direct reply-to.
"""

from __future__ import annotations

from collections.abc import Callable

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from .conftest import Connect
from .support import Consumer, channel_error, receive

Name = Callable[..., str]
PSEUDO = "amq.rabbitmq.reply-to"


@pytest.fixture
def service(channel: BlockingChannel, name: Name) -> str:
    return str(channel.queue_declare(name("service"), exclusive=True).method.queue)


def ask(channel: BlockingChannel, service: str, number: int) -> None:
    channel.basic_publish(
        "", service, b"ask %d" % number, pika.BasicProperties(reply_to=PSEUDO, correlation_id=str(number))
    )


def test_answers_reach_the_channel_that_asked(channel: BlockingChannel, connect: Connect, service: str) -> None:
    clients = [connect().channel() for _ in range(3)]
    answers = [Consumer(each, PSEUDO, auto_ack=True) for each in clients]
    for number, client in enumerate(clients):
        ask(client, service, number)
    addresses = set()
    for request in receive(channel, service, 3):
        addresses.add(request.properties.reply_to)
        properties = pika.BasicProperties(correlation_id=request.properties.correlation_id)
        channel.basic_publish("", request.properties.reply_to, b"answer to " + request.body, properties)
    assert len(addresses) == 3
    assert all(address.startswith(PSEUDO + ".") for address in addresses)
    for number, answer in enumerate(answers):
        delivery = answer.wait(1)[0]
        assert (delivery.body, delivery.properties.correlation_id) == (b"answer to ask %d" % number, str(number))
        assert delivery.method.exchange == ""


def test_address_tells_if_the_requester_is_still_there(
    channel: BlockingChannel, connect: Connect, service: str
) -> None:
    client = connect()
    asking = client.channel()
    Consumer(asking, PSEUDO, auto_ack=True)
    ask(asking, service, 1)
    address = receive(channel, service, 1)[0].properties.reply_to
    assert channel.queue_declare(address, passive=True).method.queue == address
    client.close()
    with channel_error(404):
        channel.connection.channel().queue_declare(address, passive=True)


def test_answer_to_nobody_is_returned_if_mandatory(channel: BlockingChannel, connect: Connect, service: str) -> None:
    client = connect()
    asking = client.channel()
    Consumer(asking, PSEUDO, auto_ack=True)
    ask(asking, service, 1)
    address = receive(channel, service, 1)[0].properties.reply_to
    client.close()
    channel.confirm_delivery()
    channel.basic_publish("", address, b"too late")  # lost without a word
    with pytest.raises(pika.exceptions.UnroutableError):
        channel.basic_publish("", address, b"too late", mandatory=True)


def test_only_one_reply_consumer_per_channel(channel: BlockingChannel) -> None:
    Consumer(channel, PSEUDO, auto_ack=True)
    with channel_error(406, "reply consumer already set"):
        channel.basic_consume(PSEUDO, lambda *_: None, auto_ack=True)


def test_cancelled_reply_consumer_gets_nothing(channel: BlockingChannel, connect: Connect, service: str) -> None:
    asking = connect().channel()
    answers = Consumer(asking, PSEUDO, auto_ack=True)
    ask(asking, service, 1)
    address = receive(channel, service, 1)[0].properties.reply_to
    answers.cancel()
    channel.confirm_delivery()
    channel.basic_publish("", address, b"too late")
    asking.flow(True)
    assert answers.bodies == []
