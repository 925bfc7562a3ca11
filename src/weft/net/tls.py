"""TLS contexts for listeners and for dials, from certificates and keys.

Owns how files become an `ssl.SSLContext`. Paths come in, a context goes out, or a `ConfigError` that names the file
at fault.
It must never know which protocol runs inside.
Rule: TLS 1.2 and later, the cipher choice is OpenSSL's default.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from weft.model.errors import ConfigError

VERSION = 0xA0
UTC_TIME = 0x17
"""Tags of DER: the version of a certificate, if it has one, and a time with two digits for the year."""


def server_context(certificate: Path, key: Path, ca_file: Path | None = None) -> ssl.SSLContext:
    """The context of a listener; the certificate file holds the chain in PEM, the key stands in its own file.

    With `ca_file` peers are asked for a certificate, and may have none; one that those authorities did not sign ends
    the connection.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load(context, certificate, key)
    if ca_file is not None:
        _trust(context, ca_file)
        context.verify_mode = ssl.CERT_OPTIONAL
    return context


@dataclass(slots=True)
class Identity:
    """What a listener shows, and whom it trusts: files, and the context that was made of them."""

    certificate: Path
    key: Path
    ca_file: Path | None = None
    context: ssl.SSLContext = field(init=False)
    expires_s: int = field(init=False)
    """When the certificate that is shown expires, in seconds since 1970."""

    def __post_init__(self) -> None:
        self.context = server_context(self.certificate, self.key, self.ca_file)
        self.expires_s = expires_s(self.certificate)

    def renew(self) -> None:
        """Show what is in the files now to whoever comes next, and trust the authorities that came; with files that do
        not fit together all stays as it is.
        """
        again = Identity(self.certificate, self.key, self.ca_file)
        _load(self.context, self.certificate, self.key)
        if self.ca_file is not None:
            _trust(self.context, self.ca_file)
        self.expires_s = again.expires_s


def expires_s(certificate: Path) -> int:
    """When the first certificate of a file in PEM expires, in seconds since 1970."""
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    text = certificate.read_text(errors="replace").partition(begin)[2].partition(end)[0]
    whole = _Der(ssl.PEM_cert_to_DER_cert(f"{begin}{text}{end}"))
    parts = whole.inside().inside()  # of what is signed, RFC 5280 section 4.1
    for _ in range(4 if parts.tag == VERSION else 3):  # version, serial number, algorithm, issuer
        parts.skip()
    time = parts.inside()
    time.skip()  # not before
    text = time.value.decode("ascii")
    form = "%y%m%d%H%M%SZ" if time.tag == UTC_TIME else "%Y%m%d%H%M%SZ"
    return int(datetime.strptime(text, form).replace(tzinfo=UTC).timestamp())


class _Der:
    """Values of DER, one after the other."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._read()

    def _read(self) -> None:
        self.tag, length, at = self._data[0], self._data[1], 2
        if length & 0x80:
            at += length & 0x7F
            length = int.from_bytes(self._data[2:at])
        self.value, self._rest = self._data[at : at + length], self._data[at + length :]

    def skip(self) -> None:
        """Go on to the next value."""
        self._data = self._rest
        self._read()

    def inside(self) -> _Der:
        """The values that this one is made of."""
        return _Der(self.value)


def peer_name(certificate: Mapping[str, Any] | None) -> str | None:
    """The common name in a peer's certificate, as `getpeercert` gives it; None if it has none, or several.

    >>> peer_name({"subject": ((("organizationName", "Lab"),), (("commonName", "ada"),))})
    'ada'
    """
    subject = (certificate or {}).get("subject", ())
    names = [value for part in subject for kind, value in part if kind == "commonName" and value]
    return names[0] if len(names) == 1 else None


def client_context(
    ca_file: Path | None = None, certificate: Path | None = None, key: Path | None = None, *, verify: bool = True
) -> ssl.SSLContext:
    """The context of a dial: the authorities to trust (the system's by default), and who we are, if that is asked."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif ca_file is None:
        context.load_default_certs()
    else:
        _trust(context, ca_file)
    if certificate is not None:
        _load(context, certificate, key or certificate)
    return context


def _require(path: Path) -> None:
    try:
        path.open("rb").close()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {(error.strerror or str(error)).lower()}") from error


def _trust(context: ssl.SSLContext, ca_file: Path) -> None:
    _require(ca_file)
    try:
        context.load_verify_locations(ca_file)
    except ssl.SSLError as error:
        raise ConfigError(f"{ca_file} holds no certificate: {error.reason or error}") from error


def _load(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    _require(certificate)
    _require(key)
    try:
        # A callback in place of OpenSSL's prompt: a node must not wait for someone to type a passphrase.
        context.load_cert_chain(certificate, key, password=lambda: "")
    except ssl.SSLError as error:
        reason = error.reason or str(error)
        raise ConfigError(f"{certificate} and {key} are not a certificate and its key: {reason}") from error
