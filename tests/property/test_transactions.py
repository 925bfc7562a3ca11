"""Transactions of AMQP 1.0 among all the other steps: what they take, put and decide happens whole, or not at all.

Owns one Hypothesis machine, the machine of `test_machine.py` with more rules: messages that are posted, deliveries
that are acquired (by a flow that names the transaction) and retired in a transaction, and its end by either word, by
whoever leaves, or by an outcome that does not belong to it. The model hears of it all at the end, as it should.
Rules: AMQP 1.0 part 4, docs/reference/amqp-1.0.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import hypothesis
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from proton import Delivery, Described, Link, Message, ulong

from property.model import Copy, Model, Outcome
from property.model import Message as Letter
from property.peer091 import Peer091
from property.peer10 import TRANSACTIONAL, Peer10
from property.publishers import encoded
from property.receipts import Fate
from property.test_machine import QUEUES, STATES, BrokerMachine, Holder, indexes, letters

OPEN_MAX = 2
DECLARE, DISCHARGE, DECLARED = 0x31, 0x32, 0x33
ROLLED_BACK = "amqp:transaction:rollback"


class Step(NamedTuple):
    """Something to do in a transaction; what it does not need it ignores."""

    kind: str
    which: int
    credit: int
    letter: tuple[str, Letter]
    outcome: Outcome
    variant: bool
    is_settled: bool


steps = st.builds(
    Step,
    st.sampled_from(["post", "acquire", "acquire", "retire"]),
    indexes,
    st.integers(1, 3),
    letters,
    st.sampled_from([*STATES]),
    st.booleans(),
    st.booleans(),
)


class Got(NamedTuple):
    """A delivery, and whose it is."""

    holder: Holder
    delivery: Delivery


class Retired(NamedTuple):
    """A delivery that ends with the transaction."""

    got: Got
    outcome: Outcome
    word: Fate | None
    is_settled: bool
    """The peer has let go of it already."""
    is_acquired: bool


@dataclass(eq=False)
class Transaction:
    """What has been done in it so far, by token."""

    id: bytes
    posts: list[tuple[str, Letter]] = field(default_factory=list)
    acquired: dict[int, Got] = field(default_factory=dict)
    retired: dict[int, Retired] = field(default_factory=dict)

    def is_back(self, one: Retired, holders: list[Holder]) -> bool:
        """Does it go back to its queue on rollback, and not to its holder?"""
        holder = one.got.holder
        return one.is_settled or one.is_acquired or holder not in holders or not holder.is_open

    def given_back(self, holders: list[Holder]) -> list[int]:
        """What is nobody's after a rollback."""
        return [*self.acquired, *(token for token, one in self.retired.items() if self.is_back(one, holders))]


class TransactionMachine(BrokerMachine):
    """Clients of both protocols, one of which has transactions."""

    def __init__(self) -> None:
        super().__init__()
        self.transactions: list[Transaction] = []
        self.control10: Link | None = None
        self.poster: Link | None = None

    def pick_transaction(self, index: int) -> Transaction:
        return self.transactions[index % len(self.transactions)]

    # asking

    def request(self, code: int, *fields: Any) -> Delivery:
        assert self.control10 is not None
        body = Message(Described(ulong(code), list(fields)))
        delivery = self.peer10.send(self.control10, body.encode())
        assert delivery.settled
        delivery.settle()
        return delivery

    @rule(index=indexes, steps=st.lists(steps, min_size=2, max_size=8))
    def work(self, index: int, steps: list[Step]) -> None:
        """Some of what can be done in a transaction, a new one or one that is open."""
        if not self.transactions or (index % 2 and len(self.transactions) < OPEN_MAX):
            self.declare()
        transaction = self.pick_transaction(index)
        for step in steps:
            match step.kind:
                case "post":
                    self.post(transaction, step.letter)
                case "acquire":
                    self.acquire(transaction, step)
                case "retire":
                    self.retire(transaction, step)
            self.agree()

    def declare(self) -> None:
        if self.control10 is None:
            self.control10 = self.peer10.coordinator(f"control-{self.number()}")
        if self.poster is None:
            self.poster = self.peer10.sender(self.peer10.session(), f"poster-{self.number()}")
        delivery = self.request(DECLARE, None)
        assert delivery.remote_state == DECLARED
        self.transactions.append(Transaction(bytes(delivery.remote.data[0])))

    def post(self, transaction: Transaction, posted: tuple[str, Letter]) -> None:
        """A message that nobody sees before the end."""
        exchange, letter = posted
        if exchange not in {"", *self.model.exchanges} or not (exchange or letter.key in self.model.queues):
            return
        assert self.poster is not None
        sent = replace(letter, number=self.messages)
        self.messages += 1
        delivery = self.peer10.send(self.poster, encoded(exchange, sent), transaction.id)
        assert (delivery.remote_state, delivery.settled) == (TRANSACTIONAL, True)
        delivery.settle()
        transaction.posts.append((exchange, sent))

    def acquire(self, transaction: Transaction, step: Step) -> None:
        """Credit for messages that belong to a transaction from the beginning, and so does credit from before. There is
        something to get, as far as that can be had.
        """
        holder = self.pick(step.which, lambda one: one.link and one.is_open)
        if holder is None:
            self.receive(QUEUES[step.which % len(QUEUES)], 0)
            return
        name = holder.queue
        if not self.model.queues[name].ready:
            self.publish_one_091("", replace(step.letter[1], key=name, ttl_ms=None), mandatory=False)
            self.agree()
        if self.decide(lambda model: model.consume(name, holder.number, step.credit)):
            assert isinstance(holder.peer, Peer10)
            assert holder.link is not None
            holder.peer.flow(holder.link, step.credit, transaction.id)

    def match(self, holder: Holder, name: str, sent: list[Copy]) -> None:
        before = set(holder.held)
        super().match(holder, name, sent)
        if holder.link is None:
            return
        expected = self.peer10.acquiring.get(holder.link.name)
        for token in holder.held.keys() - before:
            delivery = holder.held[token]
            state = delivery.remote_state
            assert (bytes(delivery.remote.data[0]) if state == TRANSACTIONAL else None) == expected
            if expected is not None:
                transaction = next(one for one in self.transactions if one.id == expected)
                transaction.acquired[token] = Got(holder, holder.held.pop(token))

    def retire(self, transaction: Transaction, step: Step) -> None:
        """A delivery is to end with the transaction, whether it was acquired in it or in none."""
        candidates = transaction.acquired | self.free()
        if not candidates:
            return
        token = sorted(candidates)[step.which % len(candidates)]
        got = candidates[token]
        is_acquired = transaction.acquired.pop(token, None) is not None
        got.holder.held.pop(token, None)
        word: Fate | None = None
        if step.outcome == "returned":
            word = "modified" if step.variant else "released"
        state = STATES[step.outcome][step.variant and step.outcome == "returned"]
        self.peer10.decide_in(transaction.id, got.delivery, state)
        if step.is_settled:
            got.delivery.settle()
        self.peer10.sync()
        transaction.retired[token] = Retired(got, step.outcome, word, step.is_settled, is_acquired)

    def free(self) -> dict[int, Got]:
        """Deliveries over 1.0 that no transaction has."""
        links = [holder for holder in self.holders if holder.link is not None]
        return {token: Got(holder, one) for holder in links for token, one in holder.held.items()}

    # its end

    @precondition(lambda self: self.transactions)
    @rule(index=indexes, how=st.sampled_from(["commit"] * 4 + ["roll back"] * 2 + ["abandon", "meddle", "meddle"]))
    def end(self, index: int, how: str) -> None:
        match how:
            case "abandon":
                self.abandon()
            case "meddle":
                self.meddle(index)
            case _:
                self.discharge(self.pick_transaction(index), fails=how == "roll back")

    def discharge(self, transaction: Transaction, *, fails: bool) -> None:
        ends = [(token, one.outcome, one.word) for token, one in transaction.retired.items()]
        back = transaction.given_back(self.holders)
        done: list[bool] = []

        def decide(model: Model) -> None:
            done.append(not fails and model.commit(transaction.posts, ends))
            if not done[-1]:
                model.settle(back, "returned")

        if not self.decide(decide):
            return
        if done[-1]:
            self.committed(transaction)
        else:
            self.rolled_back([transaction])
        delivery = self.request(DISCHARGE, transaction.id, fails)
        if fails or done[-1]:
            assert delivery.remote_state == Delivery.ACCEPTED
        else:
            assert (delivery.remote_state, delivery.remote.condition.name) == (Delivery.REJECTED, ROLLED_BACK)
        self.see_ends(transaction, done[-1])

    def committed(self, transaction: Transaction) -> None:
        """What was acquired and not retired is its holder's now."""
        for token, got in transaction.acquired.items():
            got.holder.held[token] = got.delivery
        self.close([transaction])

    def rolled_back(self, transactions: list[Transaction]) -> None:
        """What was retired and is still held can be decided anew."""
        for transaction in transactions:
            for token, one in transaction.retired.items():
                if not transaction.is_back(one, self.holders):
                    one.got.holder.held[token] = one.got.delivery
        self.close(transactions)

    def close(self, transactions: list[Transaction]) -> None:
        self.transactions = [one for one in self.transactions if one not in transactions]
        ids = {one.id for one in transactions}
        acquiring = self.peer10.acquiring
        self.peer10.acquiring = {name: named for name, named in acquiring.items() if named not in ids}

    def see_ends(self, transaction: Transaction, is_committed: bool) -> None:
        """The node has settled what it decided, as far as the peer had not, and nothing else."""
        self.peer10.sync()
        alive = [one for one in self.holders if one.is_open]
        for one in transaction.retired.values():
            if one.got.holder in alive and not one.is_settled:
                is_over = is_committed or one.is_acquired
                assert one.got.delivery.settled == is_over
                if is_over:
                    one.got.delivery.settle()
        for got in transaction.acquired.values():
            if got.holder in alive:
                assert got.delivery.settled == (not is_committed)
                if not is_committed:
                    got.delivery.settle()

    def abandon(self) -> None:
        """The control link goes, and all that was declared on it."""
        transactions = self.transactions
        back = [token for one in transactions for token in one.given_back(self.holders)]
        if self.decide(lambda model: model.settle(back, "returned")):
            assert self.control10 is not None
            self.rolled_back(transactions)
            self.control10.close()
            self.control10 = None
            for transaction in transactions:
                self.see_ends(transaction, is_committed=False)

    def meddle(self, index: int) -> None:
        """An outcome outside the transaction that acquired the delivery, which ends the control link."""
        found = [(one, got) for one in self.transactions for got in one.acquired.values()]
        if not found:
            return
        owner, got = found[index % len(found)]
        transactions = self.transactions
        others = [one for one in transactions if one is not owner]
        back = [token for one in transactions for token in one.given_back(self.holders)]
        if not self.decide(lambda model: model.settle(back, "returned")):
            return
        self.rolled_back(transactions)
        if others and index % 3:
            self.peer10.decide_in(others[0].id, got.delivery, Delivery.ACCEPTED)
        else:
            got.delivery.update(Delivery.ACCEPTED)
        self.peer10.sync()
        assert self.control10 is not None
        assert self.control10.remote_condition is not None
        assert self.control10.remote_condition.name == ROLLED_BACK
        self.control10.close()
        self.control10 = None
        for transaction in transactions:
            self.see_ends(transaction, is_committed=False)

    # leaving

    def tokens_of(self, holders: list[Holder], peer: Peer091 | Peer10 | None = None) -> list[int]:
        found = super().tokens_of(holders, peer)
        for transaction in self.transactions:
            found += [token for token, got in transaction.acquired.items() if got.holder in holders]
            if peer is self.peer10:
                found += transaction.retired
        return found

    def forget(self, holders: list[Holder], peer: Peer091 | Peer10 | None = None) -> None:
        super().forget(holders, peer)
        for transaction in self.transactions:
            kept = {token: got for token, got in transaction.acquired.items() if got.holder not in holders}
            transaction.acquired = kept
        if peer is self.peer10:
            self.transactions, self.control10, self.poster = [], None, None


TestTransactions = TransactionMachine.TestCase
TestTransactions.settings = hypothesis.settings(max_examples=hypothesis.settings().max_examples // 2)
