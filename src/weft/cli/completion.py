"""`weft completion`: a script that lets a shell complete commands, their words and their options.

Owns the scripts of bash, zsh and fish. The options of every command come in, as each command tells them; text for a
shell goes out. It must never know a command: whatever `weft COMMAND --help` tells is completed.
Rule: options are offered once a dash is typed, and names of files are left to the shell where no word of weft fits.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator

from weft.cli import COMMANDS, load

BASH = """\
_weft() {
    local word=${COMP_WORDS[COMP_CWORD]} place="weft" known i
    for ((i = 1; i < COMP_CWORD; i++)); do
        [[ -n ${_weft_words["$place ${COMP_WORDS[i]}"]+x} ]] && place+=" ${COMP_WORDS[i]}"
    done
    known=${_weft_words["$place"]}
    [[ $word == -* ]] || known=${known%%--*}
    COMPREPLY=($(compgen -W "$known" -- "$word"))
}
complete -o default -F _weft weft"""

ZSH = """\
_weft() {
    local place=weft word known
    for word in "${(@)words[2,CURRENT-1]}"; do
        [[ -n ${_weft_words[$place $word]} ]] && place+=" $word"
    done
    known=${_weft_words[$place]}
    [[ ${words[CURRENT]} == -* ]] || known=${known%%--*}
    compadd -- ${=known} || _files
}
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
compdef _weft weft"""

FISH = """\
function __weft_known
    set -l place weft
    for word in (commandline -opc)[2..]
        contains -- "$place $word" $__weft_places; and set place "$place $word"
    end
    set -l known (string split ' ' -- $__weft_words[(contains -i -- $place $__weft_places)])
    set -l typed (commandline -ct)
    string match -q -- '-*' $typed; or set known (string match -v -- '-*' $known)
    string match -- "$typed*" $known
end
complete -c weft -e
complete -c weft -f -n 'count (__weft_known) >/dev/null' -a '(__weft_known)'"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))


def run(options: argparse.Namespace) -> int:
    """Print the script."""
    places = {"weft": [*COMMANDS, "--help", "--version"]}
    for command in COMMANDS:
        places.update(_places(f"weft {command}", load(command)[1]))
    print("\n".join({"bash": _bash, "zsh": _zsh, "fish": _fish}[options.shell](places)))
    return 0


def _places(place: str, parser: argparse.ArgumentParser) -> Iterator[tuple[str, list[str]]]:
    """What may stand after the words so far, for a command and each of its words: words first, then options."""
    words: list[str] = []
    for action in parser._actions:
        if action.choices is not None and not action.option_strings:
            words += map(str, action.choices)
        if isinstance(action, argparse._SubParsersAction):
            for word, inner in action.choices.items():
                yield from _places(f"{place} {word}", inner)
    yield place, words + [name for name in parser._option_string_actions if name.startswith("--")]


def _bash(places: dict[str, list[str]]) -> Iterator[str]:
    yield "declare -gA _weft_words=("
    for place, known in places.items():
        yield f"    [{shlex.quote(place)}]={shlex.quote(' '.join(known))}"
    yield f")\n{BASH}"


def _zsh(places: dict[str, list[str]]) -> Iterator[str]:
    yield "typeset -gA _weft_words=("
    for place, known in places.items():
        yield f"    {shlex.quote(place)} {shlex.quote(' '.join(known))}"
    yield f")\n{ZSH}"


def _fish(places: dict[str, list[str]]) -> Iterator[str]:
    yield f"set -g __weft_places {shlex.join(places)}"
    yield f"set -g __weft_words {shlex.join(map(' '.join, places.values()))}"
    yield FISH
