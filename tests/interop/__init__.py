"""Interop: real, unmodified clients against the broker under test.

Owns what outside software may rely on: each file drives one client library, or one topic with one library. The broker
comes from the `broker` fixture; tests never look inside it. A test of AMQP 0-9-1 must pass on RabbitMQ as well
(WEFT_TEST_BROKER=rabbitmq) unless it is marked `weft_only`. Names of queues and exchanges are unique per test, so
that all tests can share one broker.
"""
