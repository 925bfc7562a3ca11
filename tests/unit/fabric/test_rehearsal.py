"""Thousands of real directories come to the same end, and no node has more to do than its neighbours give it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from weft.cli import main
from weft.fabric.model import Paper
from weft.fabric.rehearsal import links_of, rehearse

CONNECTIONS_MAX = 500
PAYPAL = Path(__file__).parents[3] / "examples" / "fabrics" / "paypal.toml"


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


def test_the_table_of_the_talk_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan"]) == 0
    _, *rows, _ = (line.split() for line in capsys.readouterr().out.splitlines())
    assert rows == [
        ["99%", "0.01", "2", "0.0001", "99.99%"],
        ["99%", "0.01", "3", "1e-06", "99.9999%"],
        ["99.9%", "0.001", "2", "1e-06", "99.9999%"],
        ["99.9%", "0.001", "3", "1e-09", "99.9999999%"],
    ]


def test_paths_that_share_a_zone_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body = PAYPAL.read_text().replace('kind = "gateway"\ntier', 'kind = "gateway"\nzone = "z1"\ntier')
    (tmp_path / "fabric.toml").write_text(body)
    assert main(["plan", str(tmp_path / "fabric.toml"), "--from", "local-1", "--to", "remote-1"]) == 0
    said = capsys.readouterr().out
    assert "all of them need: zone z1" in said
    assert "They are not independent" in said


@pytest.mark.parametrize("target", ["1", "0", "nan", "5"])
def test_nothing_is_certain(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--target", target]) == 2
    assert "--target is a share between 0 and 1" in capsys.readouterr().err
