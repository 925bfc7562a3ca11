# Made by tools/unasync.py from the module of the same name one folder up: edit that, never this.
"""Pipelines: steps with queues between them, each with as many workers as it needs.

Owns the order of steps and the queue before each. A value sent to the pipeline goes through all steps, wherever their
workers run; each worker takes from its step's queue and sends to the next, and accepts what it took only then.
It must never know where the other steps run: the queues are the contract.
Rule: what a step sends has an id made from the id of what it took, so that a step done twice counts once behind a
barrier.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from weft.client.message import Message
from weft.client.sync.receiving import Receiver
from weft.client.threads import Work, caller
from weft.model.errors import LocalProtocolError, WeftError

if TYPE_CHECKING:
    from weft.client.sync.fabric import Fabric

LOG = logging.getLogger("weft.client")


class Step:
    """One step of a pipeline."""

    def __init__(self, name: str, handler: Callable[[Message], Any], workers: int) -> None:
        self.name = name
        self.call = caller(handler)
        self.workers = workers
        self.address = ""
        self.onward: str | None = None
        """Where its results go."""


class Pipeline:
    """Steps in order; `fabric.pipeline(name)` makes it.

    A step's handler takes a message and returns the value for the next step, or None to drop it; the results of the
    last step go to the address `output`, if there is one.
    """

    def __init__(self, fabric: Fabric, name: str, output: str | None = None) -> None:
        self.name = name
        self._fabric = fabric
        self._output = output
        self._steps: list[Step] = []
        self._receivers: list[Receiver] = []
        self._works: list[Work] = []

    def step(self, name: str, *, workers: int = 1) -> Callable[[Callable[[Message], Any]], Callable[[Message], Any]]:
        """Add a step after those there are."""

        def add(handler: Callable[[Message], Any]) -> Callable[[Message], Any]:
            self._steps.append(Step(name, handler, workers))
            return handler

        return add

    def send(self, body: Any, **properties: Any) -> None:
        """Send a value into the first step."""
        self._wire()
        self._fabric.send(self._steps[0].address, body, **properties)

    def start(self, *names: str) -> None:
        """Work on the named steps, or on all of them; call it again for more workers."""
        self._wire()
        chosen = [step for step in self._steps if not names or step.name in names]
        if not chosen:
            raise LocalProtocolError(f"pipeline {self.name} has no step {' or '.join(names)}")
        for step in chosen:
            for _ in range(step.workers):
                receiver = self._fabric.receive(step.address, accept="explicit", credit=2)
                receiver.ready()
                self._receivers.append(receiver)
                self._works.append(Work(self._run, step, receiver))

    def stop(self) -> None:
        """Stop working here; what was taken and not finished goes back."""
        for receiver in self._receivers:
            receiver.close()
        for work in self._works:
            work.join()

    def _wire(self) -> None:
        if not self._steps:
            raise LocalProtocolError(f"pipeline {self.name} has no steps")
        for step, after in zip(self._steps, [*self._steps[1:], None], strict=True):
            step.address = f"{self.name}.{step.name}"
            step.onward = self._output if after is None else f"{self.name}.{after.name}"

    def _run(self, step: Step, receiver: Receiver) -> None:
        try:
            for message in receiver:
                self._do(step, message)
        except WeftError:
            return  # the receiver or the client was closed

    def _do(self, step: Step, message: Message) -> None:
        try:
            value = step.call(message)
            if value is not None and step.onward is not None:
                taken = message.message_id
                made = None if taken is None else f"{taken!s}/{step.name}"
                self._fabric.send(step.onward, value, headers=message.headers, message_id=made)
        except Exception:
            LOG.exception("step %s.%s failed; the message is tried again", self.name, step.name)
            message.retry()
            return
        message.accept()
