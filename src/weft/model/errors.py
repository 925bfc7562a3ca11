"""The errors of weft, one small tree.

Owns every exception class a user or a controller may catch; the kernel raises them through one conversion.
Peers' mistakes never raise in the node: they become a close frame and an event.
Nothing here may import the rest of weft.
Rule: Local* means our caller's mistake, Remote* the peer's, the rest says what the world did.
"""

from __future__ import annotations


class WeftError(Exception):
    """Base of all errors raised by weft."""


class LocalProtocolError(WeftError):
    """The caller broke the rules of the API (an unknown id, a change naming nothing)."""


class RemoteProtocolError(WeftError):
    """The peer broke the rules of the protocol."""


class Refused(WeftError):
    """The other side said no; `code` is the AMQP reply code."""

    def __init__(self, text: str, code: int = 403) -> None:
        super().__init__(text)
        self.code = code


class Unavailable(WeftError):
    """What is needed is not there now; trying again later may help."""


class Corrupt(WeftError):
    """Stored data does not say what it should."""


class ConfigError(WeftError):
    """A configuration file or option is wrong; the text says what and where."""


class DeadlineExceeded(Unavailable, TimeoutError):
    """An operation was not done in its time; the text says what it waited for."""


class Undelivered(WeftError):
    """A message was not taken: `outcome` is `released`, `rejected`, `modified`, `unknown` or `lost`."""

    def __init__(self, text: str, outcome: str, condition: str = "") -> None:
        super().__init__(text)
        self.outcome = outcome
        self.condition = condition


class Untrusted(WeftError):
    """A message is not signed by a key that is known, or was changed after it was signed."""


class ServiceError(WeftError):
    """A service answered a request with an error; `kind` is the name of the exception its handler raised."""

    def __init__(self, text: str, kind: str = "") -> None:
        super().__init__(text)
        self.kind = kind
