"""`weft hash-password`: a password in, the line a configuration file holds out.

Owns reading the password without showing it. The hash is `weft.policy`'s.
It must never take a password as an argument, where every user of the machine could see it.
"""

from __future__ import annotations

import argparse
import getpass
import sys

from weft.model.errors import ConfigError
from weft.policy.passwords import hash_password
from weft.policy.scram import make_verifier


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this command; the password comes by standard input."""
    parser.add_argument("--scram", action="store_true", help="a verifier for SCRAM-SHA-256 in place of a plain hash")
    parser.description = f"{parser.description} It is asked for, or is the first line of standard input."


def run(options: argparse.Namespace) -> int:
    """Print the hash."""
    password = getpass.getpass("password: ") if sys.stdin.isatty() else sys.stdin.readline().rstrip("\n")
    if not password:
        raise ConfigError("the password is empty")
    print(make_verifier(password).encode() if options.scram else hash_password(password))
    return 0
