"""The command `weft`: options in, one clear line or a running node out.

Owns the table of commands and how mistakes are told. Each command is a module with `add_options` and `run`; it is
imported only when it is called, since a node must be ready in well under a second.
It must never hold what an embedded node needs as well: that is in `weft.server`.
Rule: whatever goes wrong is one line on standard error that says what to do; exit code 2 for wrong options and files,
and for a node that does not come up; 1 for what failed. Who interrupts a command or reads no more of what it prints
knows, and is told nothing.
"""

from __future__ import annotations

import argparse
import copy
import io
import os
import signal
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any, NoReturn

from weft import __version__
from weft.cli.examples import EXAMPLES
from weft.cli.options import printable
from weft.model.errors import ConfigError, Corrupt, WeftError

COMMANDS = {
    "up": "run a node in the foreground",
    "send": "send messages to an address or a topic",
    "receive": "print messages of an address, a topic or a stream",
    "request": "ask a service and print its reply",
    "spool": "what a client keeps on its own disk until a node takes it",
    "bench": "send and receive as fast as it goes, and tell how fast that was",
    "watch": "run a file of rules over a node: be told, or act, when something crosses a line",
    "scale": "start and stop instances of services as their queues want it",
    "config": "show what a configuration file may hold, or check one",
    "log": "show what streams and durable queues hold, from a data folder",
    "backup": "copy the data folder of a node, which may go on meanwhile",
    "link": "connections that a node keeps to other nodes",
    "route": "what those links carry",
    "gateway": "messages of other systems into a fabric, and out of it",
    "relay": "exchanges and queues that two nodes keep in step",
    "map": "draw the whole network, found from one node",
    "plan": "how safe several paths are, and how large a network may grow",
    "fabric": "a whole fabric from one file: what differs, make it so, run it here",
    "directory": "who is where: services, addresses, settings of nodes",
    "names": "answer DNS questions for the services and nodes of a fabric",
    "exchange": "exchanges of a node, and bindings",
    "queue": "queues of a node",
    "policy": "settings for every queue and exchange whose name matches",
    "ctl": "any object of a node: list, show, make, change, call, watch; export and import",
    "top": "a node live in the terminal: queues, rates, latencies",
    "report": "a node's scale: capacity, sharing, availability, administration",
    "browse": "look into a queue or a stream, and leave everything where it is",
    "tap": "see messages as they pass",
    "trace": "where a message has been, from node to node",
    "move": "what is ready in a queue goes to another place",
    "retry": "dead letters go back to the queue they died in first",
    "recover": "after a long outage: what a queue holds, twice or not at all, and put it right",
    "quiesce": "stop delivery from every queue of a node",
    "resume": "let a node deliver again",
    "drain": "send the clients of a node elsewhere, so that it can be stopped",
    "completion": "a script that lets a shell complete commands and options",
    "hash-password": "turn a password into the line a configuration file holds",
    "ingest": "bring the messages of another broker into a stream, for Spark to read",
    "pipeline": "run Spark jobs over streams, and show what they found",
}


ABSENT = "nobody listens there; start a node by `weft up`, or name another by --url or WEFT_URL"
EXIT_CODES = "exit codes: 0 done, 1 failed (the node said no, or is not there), 2 wrong use, or no node came up"


class Parser(argparse.ArgumentParser):
    """Options, whose mistakes are one line."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **options})
        self._mixes = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Words may stand on both sides of options: `weft send orders --header colour=red hello`."""
        has_words = any(isinstance(action, argparse._SubParsersAction) for action in self._actions)
        if self._mixes or has_words:
            return super().parse_known_args(args, namespace)
        self._mixes = True  # what follows asks again, once for options and once for the rest
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._mixes = False

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        """Python 3.11 makes an empty list of a lonely `--`, as in `--count=--`."""
        values = super()._get_values(action, arg_strings)
        if action.nargs is None and isinstance(values, list):
            raise argparse.ArgumentError(action, "expected one argument")
        return values

    def share(self) -> None:
        """Let options of a command stand after its words too: `weft queue list --json`."""
        mine = [action for action in self._actions if action.option_strings and action.dest != "help"]
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                for word in action.choices.values():
                    for option in mine:
                        if not word._option_string_actions.keys() & set(option.option_strings):
                            again = copy.copy(option)
                            again.default = argparse.SUPPRESS  # what was given before the word stays
                            word._add_action(again)
                    word.share()

    def error(self, message: str) -> NoReturn:
        """One line in place of argparse's usage block."""
        self.exit(2, f"{self.prog}: {message} (try {self.prog} --help)\n")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """Who reads no more of a help text is found out while `carry_out` can still say nothing of it."""
        sys.stdout.flush()
        super().exit(status, message)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    command = words[0] if words else "help"

    def fail(error: WeftError | OSError) -> int:
        is_absent = isinstance(error.__cause__, ConnectionRefusedError)
        told = f"{error}: {ABSENT}" if is_absent else str(error)
        print(f"weft {command}: {printable(told)}", file=sys.stderr)
        return 2 if command == "up" or isinstance(error, ConfigError) else 1

    return carry_out(lambda: _run(command, words[1:]), fail)


def carry_out(work: Callable[[], int], fail: Callable[[WeftError | OSError], int]) -> int:
    """Do what a program is for; the exit code, which `fail` tells for what went wrong."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # names may have letters that a terminal or a locale has not
            stream.reconfigure(errors="backslashreplace")
    try:
        code = work()
        sys.stdout.flush()
    except BrokenPipeError:
        # Who read has had enough. Python must not try to flush the rest when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except UnicodeEncodeError as error:
        return fail(ConfigError(f"{error.object!a} is not UTF-8"))
    except (WeftError, OSError) as error:
        return fail(error)
    return code


def _run(command: str, words: list[str]) -> int:
    if command in ("help", "--help", "-h"):
        return _help(words)
    if command in ("--version", "-V"):
        print(f"weft {__version__}")
        return 0
    if command not in COMMANDS:
        from weft.config.schema import nearest

        print(f"weft: no command {command!r}, {nearest(command, COMMANDS)}", file=sys.stderr)
        return 2
    module, parser = load(command)
    code: int = module.run(parser.parse_args(words))
    return code


def load(command: str) -> tuple[ModuleType, Parser]:
    """The module of a command, and its options."""
    try:
        module = import_module(f"weft.cli.{command.replace('-', '_')}")
    except ImportError as error:
        if error.name != "weft._kernel":
            raise
        raise Corrupt("the kernel is not built, or is of another version than the rest: run `make setup`") from None
    examples = "\n".join(f"  {line}" for line in EXAMPLES[command])
    parser = Parser(
        prog=f"weft {command}",
        description=f"{COMMANDS[command]}.",
        epilog=f"examples:\n{examples}\n\n{EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.add_options(parser)
    parser.share()
    return module, parser


def _help(words: list[str]) -> int:
    if words and words[0] in COMMANDS:
        return _run(words[0], ["--help"])
    print(f"weft {__version__}: a messaging node for AMQP 0-9-1 and AMQP 1.0\n")
    for name, meaning in COMMANDS.items():
        print(f"  weft {name:<15}{meaning}")
    print("\n`weft COMMAND --help` tells the options of a command, with examples.")
    print(f"{EXIT_CODES}.")
    return 0
