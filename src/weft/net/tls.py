"""TLS contexts for listeners, from a certificate and a key.

Owns how files become an `ssl.SSLContext`. Two paths come in, a context goes out, or a `ConfigError` that names the file
at fault.
It must never know which protocol runs inside.
Rule: TLS 1.2 and later, the cipher choice is OpenSSL's default.
"""

from __future__ import annotations

import ssl
from pathlib import Path

from weft.model.errors import ConfigError


def server_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """The context of a listener; the certificate file holds the chain in PEM, the key stands in its own file."""
    for path in (certificate, key):
        try:
            path.open("rb").close()
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {(error.strerror or str(error)).lower()}") from error
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # A callback in place of OpenSSL's prompt: a node must not wait for someone to type a passphrase.
        context.load_cert_chain(certificate, key, password=lambda: "")
    except ssl.SSLError as error:
        reason = error.reason or str(error)
        raise ConfigError(f"{certificate} and {key} are not a certificate and its key: {reason}") from error
    return context
