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


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this command: none, it reads standard input."""
    parser.epilog = "The password is asked for, or is the first line of standard input."


def run(_options: argparse.Namespace) -> int:
    """Print the hash."""
    password = getpass.getpass("password: ") if sys.stdin.isatty() else sys.stdin.readline().rstrip("\n")
    if not password:
        raise ConfigError("the password is empty")
    print(hash_password(password))
    return 0
