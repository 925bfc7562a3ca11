"""Slow passwords, fast answers: verification off the loop's thread, and a memory of what was verified.

Owns the worker threads, the passwords waiting for them, and the remembered ones (as a keyed hash under a key of this
process).
A password and its stored hash come in; the verdict goes out at once if it is remembered, else to a callback on a
worker thread.
It must not know users beyond a name, nor connections; callers with the same question share one answer.
Rule: a memory entry counts only for the stored hash it was verified against, so a changed password forgets itself.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from weft.policy.passwords import decoy_hash, verify_password

Verdict = Callable[[bool], None]
_Question = tuple[str, str | None, bytes]


class Verifier:
    """Verifies passwords for many callers."""

    def __init__(self, *, workers: int, waiting_max: int, remembered_max: int, hash_cost: int) -> None:
        self._waiting_max = waiting_max
        self._remembered_max = remembered_max
        self._key = secrets.token_bytes(32)
        self._decoy = decoy_hash(hash_cost)
        self._lock = threading.Lock()
        self._remembered: dict[str, tuple[str, bytes]] = {}
        self._waiting: dict[_Question, list[Verdict]] = {}
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="weft-password")

    def recall(self, user: str, encoded: str | None, password: bytes) -> bool:
        """Was this very password verified against this very hash before?"""
        known = self._remembered.get(user)
        return known is not None and known[0] == encoded and hmac.compare_digest(known[1], self._digest(password))

    def ask(self, user: str, encoded: str | None, password: bytes, verdict: Verdict) -> bool:
        """Have `verdict` called from a worker thread; False if too many are waiting. Without a hash it takes as long,
        and is no.
        """
        question = user, encoded, self._digest(password)
        with self._lock:
            if question in self._waiting:
                self._waiting[question].append(verdict)
                return True
            if len(self._waiting) >= self._waiting_max:
                return False
            self._waiting[question] = [verdict]
        self._threads.submit(self._answer_on_worker_thread, question, password)
        return True

    def close(self) -> None:
        """Stop after what is being verified now; whoever waits gets no answer."""
        self._threads.shutdown(cancel_futures=True)

    def _answer_on_worker_thread(self, question: _Question, password: bytes) -> None:
        user, encoded, digest = question
        is_right = False
        try:
            is_right = verify_password(password, encoded or self._decoy) and encoded is not None
        finally:
            with self._lock:
                verdicts = self._waiting.pop(question)
                if is_right and encoded is not None:
                    self._remember(user, encoded, digest)
            for verdict in verdicts:
                verdict(is_right)

    def _remember(self, user: str, encoded: str, digest: bytes) -> None:
        self._remembered.pop(user, None)
        if len(self._remembered) >= self._remembered_max:
            del self._remembered[next(iter(self._remembered))]
        self._remembered[user] = encoded, digest

    def _digest(self, password: bytes) -> bytes:
        return hashlib.blake2b(password, key=self._key, digest_size=32).digest()
