"""`weft completion`: a script that lets a shell complete commands, their words and their options.

Owns the scripts of bash, zsh and fish. The options of every command come in, as each command tells them; text for a
shell goes out. It must never know a command: whatever `weft COMMAND --help` tells is completed.
Rule: names of files are left to the shell, wherever nothing of weft fits.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator

from weft.cli import COMMANDS, load

BASH = """\
_weft() {
    local word=${COMP_WORDS[COMP_CWORD]} place="weft" known="" i
    for ((i = 1; i < COMP_CWORD; i++)); do
        [[ -n ${_weft_words["$place ${COMP_WORDS[i]}"]+x} ]] && place+=" ${COMP_WORDS[i]}"
    done
    known=${_weft_words["$place"]}
    COMPREPLY=($(compgen -W "$known" -- "$word"))
}
complete -o default -F _weft weft
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))


def run(options: argparse.Namespace) -> int:
    """Print the script."""
    places = {"weft": [*COMMANDS, "--help", "--version"]}
    for command in COMMANDS:
        places.update(_places(f"weft {command}", load(command)[1]))
    print("\n".join(_fish(places) if options.shell == "fish" else _bash(places, options.shell)))
    return 0


def _places(place: str, parser: argparse.ArgumentParser) -> Iterator[tuple[str, list[str]]]:
    """What may stand after the words so far, for a command and each of its words."""
    known: list[str] = []
    for action in parser._actions:
        known += [name for name in action.option_strings if name.startswith("--")]
        if action.choices is not None and not action.option_strings:
            known += map(str, action.choices)
        if isinstance(action, argparse._SubParsersAction):
            for word, inner in action.choices.items():
                yield from _places(f"{place} {word}", inner)
    yield place, known


def _bash(places: dict[str, list[str]], shell: str) -> Iterator[str]:
    if shell == "zsh":
        yield "autoload -Uz compinit bashcompinit && compinit && bashcompinit"
    yield "declare -gA _weft_words=("
    for place, known in places.items():
        yield f"    [{shlex.quote(place)}]={shlex.quote(' '.join(known))}"
    yield f")\n{BASH}"


def _fish(places: dict[str, list[str]]) -> Iterator[str]:
    for place, known in places.items():
        _, *words = place.split()
        here = " ".join(f"; and __fish_seen_subcommand_from {word}" for word in words).removeprefix("; and ")
        condition = here or "__fish_use_subcommand"
        options = [word.removeprefix("--") for word in known if word.startswith("--")]
        inner = [word for word in known if not word.startswith("--")]
        if inner:
            yield f"complete -c weft -n {shlex.quote(condition)} -a {shlex.quote(' '.join(inner))}"
        for option in options:
            yield f"complete -c weft -n {shlex.quote(condition)} -l {option}"
