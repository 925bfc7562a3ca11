"""Thousands of real directories come to the same end, and no node has more to do than its neighbours give it."""

from __future__ import annotations

from collections import Counter

import pytest

from weft.cli import main
from weft.fabric.model import Paper
from weft.fabric.rehearsal import links_of, rehearse

CONNECTIONS_MAX = 500


@pytest.mark.parametrize("servers", [1_000, 5_000])
def test_a_change_is_known_everywhere(servers: int) -> None:
    paper = Paper(servers=servers)
    done = rehearse(paper)
    assert done.nodes == servers + paper.regions * paper.gateways_per_region
    assert done.links == paper.links()
    assert done.connections_max <= CONNECTIONS_MAX
    assert 0 < done.half_ms < done.known_ms < 10_000
    assert done.messages <= 2 * done.links, "a link carries a change once in each direction at most"
    assert done.messages_max <= CONNECTIONS_MAX


def test_a_rehearsal_can_be_repeated() -> None:
    assert rehearse(Paper(servers=100), 7) == rehearse(Paper(servers=100), 7)


def test_every_server_has_its_uplinks() -> None:
    paper = Paper(servers=900)
    ends = Counter(here for here, _ in links_of(paper) if here.startswith("server-"))
    assert set(ends.values()) == {paper.uplinks}
    assert len(set(links_of(paper))) == paper.links()


def test_the_talks_network_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--servers", "10000"]) == 0
    said = capsys.readouterr().out
    assert "rehearsed with 10051 directories" in said
    found = {line.split(":")[0].strip(): line for line in said.splitlines() if "connections at" in line}
    assert all(int(line.rsplit(" ", 1)[1]) <= CONNECTIONS_MAX for line in found.values())
    assert len(found) == 3


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--target", "0.9999"], "2 paths of 99% reach 99.99%, if independent"),
        (["--target", "0.98"], "1 path of 99% reaches 98%, if independent"),
        (["--uptime", "0.01", "--target", "0.9999"], "not even 64 paths of 1% reach 99.99%, if independent"),
    ],
)
def test_how_many_paths_are_enough(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *words]) == 0
    assert capsys.readouterr().out == f"{said}\n"


@pytest.mark.parametrize("target", ["1", "0", "nan", "5"])
def test_nothing_is_certain(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--target", target]) == 2
    assert "--target is a share between 0 and 1" in capsys.readouterr().err
