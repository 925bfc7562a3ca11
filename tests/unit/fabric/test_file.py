"""The fabric file: what it may say, what it must not, and what differs from it."""

from __future__ import annotations

import math
import random
import tomllib
from pathlib import Path
from typing import Any

import pytest

from weft.fabric.diff import CLASSES, compare, compare_place
from weft.fabric.draw import Found, svg, text
from weft.fabric.file import Fabric, expand, load, parse
from weft.fabric.model import Paper
from weft.fabric.paths import estimate, find_paths, loss_of, paths_needed
from weft.model.errors import ConfigError

PAYPAL = Path(__file__).parents[3] / "examples" / "fabrics" / "paypal.toml"
NOTHING: dict[str, list[dict[str, Any]]] = {kind: [] for kind in CLASSES}


def read(body: str) -> Fabric:
    return parse(tomllib.loads(body))


def test_the_talks_network() -> None:
    fabric = load(PAYPAL)
    assert len(fabric.members) == 9
    remote = fabric.members["remote-2"]
    assert (remote.tier, remote.listen.port) == ("core", 5684)
    assert [link["urls"] for link in remote.links] == [["amqp://127.0.0.1:5673"], ["amqp://127.0.0.1:5674"]]
    assert [link["urls"] for link in fabric.members["local-1"].links] == [
        ["amqp://127.0.0.1:5673", "amqp://127.0.0.1:5674"]
    ]
    assert len(remote.routes) == 6


def test_another_broker_is_linked_to_and_left_alone() -> None:
    fabric = read(
        "[nodes.a]\nlisten='h:1'\n[nodes.b]\nurl='amqp://me:secret@other:61616/v'\n[[links]]\nfrom='a'\nto='b'"
    )
    other = fabric.members["b"]
    assert (other.is_foreign, other.url) == (True, "amqp://other:61616")
    assert [link["urls"] for link in fabric.members["a"].links] == [["amqp://me:secret@other:61616/v"]]
    assert not fabric.members["a"].is_foreign


def test_a_link_that_relays_nothing_is_a_path_of_its_own() -> None:
    links = "[nodes.'n{1..3}']\nlisten='h:1'\n[[links]]\nfrom='n*'\nto='n*'\neach=true\n"
    body = f"{links}[[routes]]\nkind='dynamic'\nexchange='x'\n"
    assert find_paths(read(body), "n1", "n3") == [("n1", "n3"), ("n1", "n2", "n3")]
    assert find_paths(read(body + "relay='complete'"), "n1", "n3") == [("n1", "n3")]
    with pytest.raises(ConfigError, match="may be ring, complete"):
        read(body + "relay='star'")


YAML = """
nodes:
  "a-{1..2}": {listen: "h:1", kind: gateway, tier: mid, region: slc}
  b: {listen: "h:9", tier: front}
links: [{from: a-1, to: a-2, each: true}]
"""


def test_the_same_in_yaml(tmp_path: Path) -> None:
    file = tmp_path / "fabric.yaml"
    file.write_text(YAML)
    fabric = load(file)
    assert [member.listen.port for member in fabric.members.values()] == [1, 2, 9]
    assert fabric.members["a-2"].place == {"kind": "gateway", "tier": "mid", "region": "slc"}
    assert fabric.edges == (("a-1", "a-2", "a-2"),)


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("nodes: [", "not YAML for us: while parsing"),
        ("- a", "holds no tables"),
        ("nodes: {1: {listen: 'h:1'}}", "1 is read as no text: write it in quotes"),
        ("nodes:\n  a: &a {listen: 'h:1'}\n  b: *a", "aliases"),
        ("nodes: !!python/object:os.system {}", "not YAML for us: could not determine a constructor"),
        ("\x00", "not YAML for us: unacceptable character"),
        ("[" * 5_000, "deep nesting"),
    ],
)
def test_what_yaml_must_not_say(tmp_path: Path, body: str, complaint: str) -> None:
    file = tmp_path / "fabric.yml"
    file.write_text(body)
    with pytest.raises(ConfigError, match=complaint):
        load(file)


def test_ranges() -> None:
    assert expand("a-{2..4}-b") == ["a-2-b", "a-3-b", "a-4-b"]
    assert expand("plain") == ["plain"]


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("", "there are no"),
        ("[nodes.a]", "needs listen"),
        ("[nodes.a]\nlisten=':1'", "host is missing"),
        ("[nodes.a]\nlisten='h:1'\ncolour='red'", "has no 'colour'"),
        ("[nodes.a]\nurl='amqp://h'\nqueues=['q']", "has no 'queues'"),
        ("[nodes.a]\nurl='http://h'", "is not amqp://"),
        ("[nodes.a]\nurl='amqp://h'\n[nodes.b]\nlisten='h:1'\n[[links]]\nfrom='a'\nto='b'", "makes no links"),
        ("[nodes.a]\nlisten='h:1'\n[nodes.b]\nlisten='h:1'", "both listen on"),
        ("[nodes.a]\nlisten='h:1'\n[[links]]\nfrom='a'\nto='b'", "no node is called 'b'"),
        ("[nodes.a]\nlisten='h:1'\nbindings=['x y z']", "is not"),
        ("[nodes.a]\nlisten='h:1'\nkind='gateway'\nqueues=['q']", "no route drains"),
        (
            "[nodes.a]\nlisten='h:1'\nregion='slc'\n[nodes.b]\nlisten='h:2'\nregion='dub'\n[[links]]\nfrom='a'\nto='b'",
            "meet only at gateways",
        ),
        (
            "[nodes.a]\nlisten='h:1'\npartition='risk'\n[nodes.b]\nlisten='h:2'\n[[links]]\nfrom='a'\nto='b'",
            "joins = true",
        ),
        ("[nodes.a]\nlisten='h:1'\n[[routes]]\nlink='up'\nkind='dynamic'\nexchange='x'", "no such node has"),
        ("[nodes.'a{3..1}']\nlisten='h:1'", "counts no nodes"),
        ("[other]\nx=1", "has no 'other'"),
        ("fabric=3\n[nodes.a]\nlisten='h:1'", "fabric is a table"),
        ("[nodes.'a-{1..2}']\nlisten='h:1'\n[nodes.a-2]\nlisten='h:7'", "two nodes called 'a-2'"),
        ("[nodes.'ä']\nlisten='h:1'", "no name for a node"),
        ("[nodes.'a-{1..2}']\nlisten='h:65535'", "would listen on port 65536"),
        ("[nodes.a]\nlisten='h:1'\nqueues='q'", "queues is a list of texts"),
        ("[nodes.a]\nlisten='h:1'\nbindings=[5]", "bindings is a list of texts"),
        ("[nodes.a]\nlisten='h:1'\n[[links]]\nfrom=5\nto='a'", "links.from is a list of texts"),
        (
            "[nodes.a]\nlisten='h:1'\n[nodes.b]\nlisten='h:2'\n[[links]]\nfrom='a'\nto='b'\n"
            "[[routes]]\nname='r'\nkind='dynamic'\nexchange='x'\n[[routes]]\nname='r'\nkind='dynamic'\nexchange='y'",
            "two routes called 'r'",
        ),
    ],
)
def test_what_it_must_not_say(body: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        read(body)


def test_regions_meet_at_gateways() -> None:
    body = (
        "[nodes.a]\nlisten='h:1'\nregion='slc'\nkind='gateway'\n[nodes.b]\nlisten='h:2'\nregion='dub'\nkind='gateway'"
    )
    assert read(body + "\n[[links]]\nfrom='a'\nto='b'").edges == (("a", "b", "b"),)


def test_what_is_missing_is_made_in_order_and_nothing_else_is_touched() -> None:
    remote = load(PAYPAL).members["remote-1"]
    steps = compare(remote, NOTHING)
    assert [step.action for step in steps] == ["make"] * len(steps)
    assert [step.kind for step in steps] == sorted((step.kind for step in steps), key=CLASSES.index)
    actual = {
        kind: [
            {
                **step.values,
                "name": step.name,
                "urls": [url.removeprefix("amqp://") for url in step.values.get("urls", [])],
            }
            for step in steps
            if step.kind == kind
        ]
        for kind in NOTHING
    }
    assert compare(remote, actual) == []
    actual["queue"].append({"name": "stray", "ready": 3})
    actual["queue"].append({"name": "empty", "ready": 0})
    actual["queue"].append({"name": "weft.bridge.x:y", "ready": 1})
    actual["queue"].append({"name": "somebodys_replies", "durable": False})  # such go with their client
    actual["binding"].append({"name": "b", "source": "amq.topic", "destination": "somebodys_replies"})
    assert compare(remote, actual) == []
    assert [str(step) for step in compare(remote, actual, prune=True)] == [
        "! queue stray  (it holds 3 messages; --force drops them)",
        "- queue empty",
    ]
    assert [step.action for step in compare(remote, actual, prune=True, force=True)] == ["remove", "remove"]


def test_a_link_with_other_addresses_is_changed() -> None:
    remote = load(PAYPAL).members["remote-1"]
    rows = [{"name": link["name"], "urls": ["127.0.0.1:1"]} for link in remote.links]
    steps = compare(remote, {**NOTHING, "uplink": rows})
    assert [step.action for step in steps if step.kind == "uplink"] == ["change", "change"]


def test_the_management_of_a_broker_is_a_key_of_its_link() -> None:
    body = (
        "[nodes.a]\nlisten='h:1'\n[nodes.rabbit]\nurl='amqp://guest:guest@h:5672'\n"
        "[[links]]\nfrom='a'\nto='rabbit'\nmanagement='http://h:15672'\n"
        "[[routes]]\nkind='dynamic'\nexchange='news'"
    )
    member = read(body).members["a"]
    (link,) = member.links
    assert link["management"] == "http://h:15672"
    row = {"name": "rabbit", "urls": ["h:5672"], "role": "", "management": ""}
    steps = compare(member, {**NOTHING, "uplink": [row]})
    assert [str(step) for step in steps if step.kind == "uplink"] == ["~ uplink rabbit  (other management)"]
    with pytest.raises(ConfigError, match="management is http"):
        read(body.replace("http://h", "h"))


def test_queues_may_have_arguments() -> None:
    body = "[nodes.a]\nlisten='h:1'\nqueues={ orders={ x-barrier='message-id' }, plain={} }"
    member = read(body).members["a"]
    made = {step.name: step.values for step in compare(member, NOTHING)}
    assert made == {
        "orders": {"durable": True, "arguments": {"x-barrier": "message-id"}},
        "plain": {"durable": True},
    }
    rows = [{"name": "plain"}, {"name": "orders", "arguments": {"x-barrier": "message-id", "x-expires": 5}}]
    assert compare(member, {**NOTHING, "queue": rows}) == []
    [step] = compare(member, {**NOTHING, "queue": [rows[0], {"name": "orders", "arguments": {}}]})
    assert (step.action, step.name) == ("keep", "orders")
    for wrong in ("queues={ orders=5 }", "queues='orders'", "queues=[5]"):
        with pytest.raises(ConfigError, match="queues"):
            read(f"[nodes.a]\nlisten='h:1'\n{wrong}")


def test_relays_are_made_with_their_parts_and_go_with_them() -> None:
    body = "[nodes.a]\nlisten='h:1'\n[nodes.b]\nlisten='h:2'\n[[relays]]\nfrom='a'\nto='b'\nexchange='news'"
    fabric = read(body)
    assert fabric.edges == (("a", "b", "news@b"),)
    (make,) = compare(fabric.members["a"], NOTHING)
    assert (make.kind, make.name, make.values["urls"]) == ("relay", "news@b", ["amqp://h:2"])
    row = {**make.values, "name": "news@b", "urls": ["h:2"]}
    parts = {"uplink": [{"name": "news@b"}], "route": [{"name": "news@b.in"}, {"name": "news@b.out"}]}
    assert compare(fabric.members["a"], {**NOTHING, **parts, "relay": [row]}, prune=True) == []
    changed = compare(fabric.members["a"], {**NOTHING, "relay": [{**row, "mode": "complete"}]})
    assert [str(step) for step in changed] == ["~ relay news@b  (other mode)"]
    gone = compare(read(body.partition("[[relays]]")[0]).members["a"], {**NOTHING, **parts, "relay": [row]}, prune=True)
    assert [str(step) for step in gone] == ["- relay news@b"]
    with pytest.raises(ConfigError, match="either an exchange or a queue"):
        read(body.replace("exchange='news'", "mode='ring'"))


def test_the_directory_is_told_what_a_node_is() -> None:
    gateway = load(PAYPAL).members["gateway-1"]
    (step,) = compare_place(gateway, None)
    assert (step.kind, step.name) == ("directory", "/topology/gateway-1")
    assert step.values == {"value": {"kind": "gateway", "tier": "mid"}}
    assert compare_place(gateway, {"value": {"tier": "mid", "kind": "gateway"}}) == []
    assert compare_place(gateway, {"value": {"tier": "core"}}) == [step]


def test_the_table_of_the_talk() -> None:
    assert [round(loss_of(uptime, n), 12) for uptime, n in ((0.99, 2), (0.99, 3), (0.999, 2), (0.999, 3))] == [
        0.0001,
        0.000001,
        0.000001,
        0.000000001,
    ]
    assert paths_needed(0.99, 0.9999) == 2
    assert paths_needed(0.99, 0.99999) == 3


def test_shared_parts_are_counted_once() -> None:
    fabric = load(PAYPAL)
    paths = find_paths(fabric, "local-1", "remote-1")
    assert paths[:2] == [("local-1", "gateway-1", "remote-1"), ("local-1", "gateway-2", "remote-1")]
    two = estimate(fabric, paths[:2])
    assert two.shared == ()
    assert two.loss == pytest.approx(two.naive_loss) == pytest.approx(0.0001)
    body = PAYPAL.read_text().replace('kind = "gateway"\ntier', 'kind = "gateway"\nzone = "z1"\ntier')
    one_zone = read(body)
    same = estimate(one_zone, paths[:2])
    assert same.shared == ("zone z1",)
    assert same.loss > 5 * two.loss


@pytest.mark.parametrize("paths", [1, 2, 3])
def test_chance_agrees_with_the_formula(paths: int) -> None:
    """Gateways that are up by chance, many times over: a message is lost as often as P_loss^n says, within 4 sigma."""
    gateways = f"[nodes.'gw-{{1..{paths}}}']\nlisten='h:10'\nkind='gateway'\nuptime=0.9\n"
    links = "[[links]]\nfrom=['a', 'b']\nto='gw-*'\neach=true"
    fabric = read(f"[nodes.a]\nlisten='h:1'\n[nodes.b]\nlisten='h:2'\n{gateways}{links}")
    found = find_paths(fabric, "a", "b")
    assert len(found) == paths
    chance, tries = random.Random(paths), 100_000
    lost = 0
    for _ in range(tries):
        up = {name for name, member in fabric.members.items() if chance.random() < member.uptime} | {"a", "b"}
        lost += not any(up.issuperset(path) for path in found)
    loss = loss_of(0.9, paths)
    assert estimate(fabric, found).loss == pytest.approx(loss)
    assert abs(lost - tries * loss) < 4 * math.sqrt(tries * loss * (1 - loss))


def test_ten_thousand_servers() -> None:
    paper = Paper()
    assert max(paper.connections().values()) <= 500
    double = Paper(servers=20_000)
    assert double.links() < 2.2 * paper.links()
    assert max(double.connections().values()) <= 500
    # A daemon for each of 1,300 services, and so on: two connections each, and few between gateways.
    for services in (1_300, 2_600, 5_200, 10_400):
        assert Paper(servers=services).links() / services < 2.2


def test_the_map_is_drawn() -> None:
    done = {"published": 7, "delivered": 6, "time_in_queue_p99_us": 1_234}
    found = Found(
        {
            "gw": {"url": "amqp://h:1", "queues": 2, "ready": 1, **done},
            "r": {"url": "amqp://h:2"},
            "<x>": {"error": "gone"},
        },
        [{"from": "r", "to": "gw", "name": "up", "role": "gateway", "state": "operational", "routes": ["<- queue q"]}],
    )
    drawn = text(found)
    assert drawn.index("[gw]") < drawn.index("[r]")
    assert "2 queues, 1 ready, 7 published, 6 delivered, 99 of 100 wait at most 1.2 ms" in drawn
    assert "==> gw (gateway)  operational" in drawn
    assert "not reached: gone" in drawn
    places = {"gw": {"tier": "mid", "kind": "gateway"}, "r": {"tier": "front", "region": "dub"}}
    tiers = Found({name: {**facts, **places.get(name, {})} for name, facts in found.nodes.items()}, found.links)
    assert text(tiers).splitlines()[:2] == ["-- front tier", "[r]  dub, amqp://h:2"]
    assert "mid tier</text>" in svg(tiers)
    picture = svg(found)
    assert picture.startswith("<svg")
    assert "&lt;x&gt;" in picture
    assert "<x>" not in picture


def test_paths_through_a_mesh_are_found_and_to_an_island_there_are_none() -> None:
    mesh = [f"n{number}" for number in range(24)]
    nodes = {name: {"listen": f"127.0.0.1:{7_000 + at}"} for at, name in enumerate([*mesh, "door", "inside", "island"])}
    links = [
        {"from": mesh, "to": mesh, "each": True},
        {"from": ["n23"], "to": ["door"]},
        {"from": ["door"], "to": ["inside"]},
    ]
    fabric = parse({"nodes": nodes, "links": links})
    assert find_paths(fabric, "n0", "island") == []
    found = find_paths(fabric, "n0", "inside")
    assert found[0] == ("n0", "n23", "door", "inside")
    assert {len(path) for path in found} == {4, 5}
    assert len(found) == 12
