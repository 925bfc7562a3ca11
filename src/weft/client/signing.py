"""Messages signed by who sends them and checked by who reads them, whatever lies between.

Owns signatures over the bare message: properties, headers and body, which no node changes, in contrast to the
annotations that nodes add. The signature stands in the footer, behind the body, and any reader with the key may check
it. It must never decode a message, and never trust a key that was not given by name. Rules: AMQP 1.0 section 3.2
(bare message, footer); docs/guides/client.md, "Signed messages".
"""

from __future__ import annotations

import hmac
from abc import ABC, abstractmethod
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from weft._kernel import Delivery
from weft.model.errors import ConfigError

SIGNATURE = "x-opt-weft-signature"
KEY_ID = "x-opt-weft-signed-by"
ALGORITHM = "x-opt-weft-algorithm"
CONTEXT = b"weft signature 1"
"""What every signature is over as well, so that it is good for nothing else."""


class Signer(ABC):
    """Signs bare messages and checks signatures; a kind of key is a subclass with `sign` and `is_right`."""

    algorithm = ""

    def __init__(self, key_id: str, *, can_sign: bool = True) -> None:
        self.key_id = key_id
        self.can_sign = can_sign

    @abstractmethod
    def sign(self, data: bytes) -> bytes:
        """The signature over some bytes, by the own key."""

    @abstractmethod
    def is_right(self, data: bytes, signature: bytes, key_id: str) -> bool | None:
        """Is this the signature of that key over the bytes? None if the key is not known."""

    def footer(self, bare: bytes) -> dict[str, Any] | None:
        """What stands behind the body of a message that is sent."""
        if not self.can_sign:
            return None
        signature = self.sign(self._covered(bare, self.key_id))
        return {ALGORITHM: self.algorithm, KEY_ID: self.key_id, SIGNATURE: signature}

    def problem(self, delivery: Delivery) -> str | None:
        """What is wrong with the signature of a received message, as the end of a sentence; None if nothing."""
        try:
            return self._problem(delivery.bare, delivery.footer)
        except ValueError:
            return "is not well-formed"

    def _problem(self, bare: bytes, footer: Mapping[str, Any]) -> str | None:
        signature, key_id = footer.get(SIGNATURE), footer.get(KEY_ID)
        if not isinstance(signature, bytes) or not isinstance(key_id, str):
            return "is not signed"
        if footer.get(ALGORITHM) != self.algorithm:
            return f"is signed by {footer.get(ALGORITHM)!r:.40}, and {self.algorithm} is expected"
        right = self.is_right(self._covered(bare, key_id), signature, key_id)
        if right is None:
            return f"is signed by a key that is not known: {key_id!r:.60}"
        return None if right else f"was changed after it was signed, or key {key_id!r:.60} is another one"

    def _covered(self, bare: bytes, key_id: str) -> bytes:
        """What a signature is over: a message signed under one name is not signed under another."""
        return b"\0".join((CONTEXT, self.algorithm.encode(), key_id.encode(), bare))


class Hmac(Signer):
    """HMAC-SHA256: who can check can sign as well. `known` has further keys by id, of other senders or of old.

    >>> signer = Hmac(b"32 bytes or more of a secret", "orders-2026")
    >>> sorted(signer.footer(b"bare message"))
    ['x-opt-weft-algorithm', 'x-opt-weft-signature', 'x-opt-weft-signed-by']
    """

    algorithm = "hmac-sha256"

    def __init__(self, key: bytes, key_id: str = "default", *, known: Mapping[str, bytes] | None = None) -> None:
        super().__init__(key_id)
        self._keys = {**(known or {}), key_id: key}

    def sign(self, data: bytes) -> bytes:
        return hmac.digest(self._keys[self.key_id], data, sha256)

    def is_right(self, data: bytes, signature: bytes, key_id: str) -> bool | None:
        key = self._keys.get(key_id)
        return None if key is None else hmac.compare_digest(hmac.digest(key, data, sha256), signature)


class Ed25519(Signer):
    """Ed25519: the private key signs, anyone with the public key checks. Keys are 32 raw bytes; needs `cryptography`.

    Without a private key nothing is signed, only checked against `known`, public keys by id.
    """

    algorithm = "ed25519"

    def __init__(
        self, private: bytes | None = None, key_id: str = "default", *, known: Mapping[str, bytes] | None = None
    ) -> None:
        try:
            from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
        except ImportError:
            raise ConfigError("Ed25519 needs the package cryptography: pip install 'weft[sign]'") from None

        super().__init__(key_id, can_sign=private is not None)
        try:
            self._keys = {name: Ed25519PublicKey.from_public_bytes(key) for name, key in (known or {}).items()}
            self._private = None if private is None else Ed25519PrivateKey.from_private_bytes(private)
        except ValueError as error:
            raise ConfigError(f"a key of Ed25519 is 32 bytes: {error}") from None
        if self._private is not None:
            self._keys[key_id] = self._private.public_key()

    def sign(self, data: bytes) -> bytes:
        if self._private is None:
            raise ValueError("there is no private key to sign with")
        return self._private.sign(data)

    def is_right(self, data: bytes, signature: bytes, key_id: str) -> bool | None:
        from cryptography.exceptions import InvalidSignature

        key = self._keys.get(key_id)
        if key is None:
            return None
        try:
            key.verify(signature, data)
        except InvalidSignature:
            return False
        return True
