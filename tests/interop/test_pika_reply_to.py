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
from .proton10 import Client10, data
from .support import Consumer, channel_error, receive, shared_queue

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


def test_a_service_of_1_0_answers_a_requester_of_0_9_1(
    channel: BlockingChannel, client10: Client10, service: str
) -> None:
    answers = Consumer(channel, PSEUDO, auto_ack=True)
    ask(channel, service, 7)
    request = receive(channel, service, 1)[0]
    assert request.properties.reply_to is not None
    sender = client10.sender(request.properties.reply_to)
    answer = data(b"answer")
    answer.correlation_id = request.properties.correlation_id
    client10.send(sender, answer)
    delivery = answers.wait(1)[0]
    assert (delivery.body, delivery.properties.correlation_id) == (b"answer", "7")


@pytest.mark.parametrize("source", [PSEUDO, f"/queues/{PSEUDO}"])
def test_a_service_of_0_9_1_answers_a_requester_of_1_0(
    channel: BlockingChannel, client10: Client10, name: Name, source: str
) -> None:
    service = shared_queue(channel, name("service"))
    answers = client10.receiver(source, credit=1)
    address = answers.remote_source.address
    assert address not in (None, source)
    question = data(b"question")
    question.reply_to, question.correlation_id = address, "8"
    client10.send(client10.sender(service), question)
    request = receive(channel, service, 1)[0]
    properties = pika.BasicProperties(correlation_id=request.properties.correlation_id)
    channel.basic_publish("", request.properties.reply_to, b"answer", properties)
    _, answer = client10.receive(answers)
    assert (bytes(answer.body), answer.correlation_id) == (b"answer", "8")
    client10.close_link(answers)
    channel.confirm_delivery()
    with pytest.raises(pika.exceptions.UnroutableError):
        channel.basic_publish("", request.properties.reply_to, b"too late", properties, mandatory=True)
