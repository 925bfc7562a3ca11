"""Every example runs to its end."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import weft
from house import tree

EXAMPLES = [path for path in tree.files(".py", under=("examples",)) if path.name != "tasks.py"]
OPTIONS = {"demo.py": ["--no-benchmarks", "--no-network"]}
TIMEOUT_S = 55
SLOW_S = {"pipeline.py": 175, "loop.py": 175, "hundred.py": 175}
"""Starting Spark, or a hundred nodes, takes a while where much else runs."""
SAYS = {
    "buffering.py": ["  reading 2\n  reading 3\n  reading 4\n"],
    "distribution.py": ["quick did more than slow: True, and together all 40"],
    "filtering.py": ["bill, urgent: kept", "bill, not urgent: filtered out", "letter, urgent: filtered out"],
    "follow.py": ["campus follows temperature.#: 11.3 °C", "they follow no more: nothing travels"],
    "forwarding.py": ["ann got 'a customer', sent to front-desk"],
    "hello.py": ["hello, simply", "hello, by the engine"],
    "hundred.py": [
        "100 nodes know each other",
        "edge-93 resolves rates to edge-7, which answers EUR/USD: 1.08",
        "the auditor may not send: payments: ACCESS_REFUSED",
        "warning backlog: queue backlog: messages is 60, above 50",
        "cleared backlog: queue backlog: ",
    ],
    "multicasting.py": ["5 queues have it; memory for messages: 1,"],
    "node_type.py": [
        "at echo\nattached: a sender",
        "attached: a receiver\na receiver wants 1 by the link",
        "came back: HELLO in answer to 1",
        "answer accepted",
        "detached: a receiver",
        "detached: a sender",
        "gone",
    ],
    "relaying.py": ["sent to orders/food, arrived in kitchen: soup"],
    "streaming.py": ["125 MiB passed; at most "],
    "subscription.py": ["two listen: 2 copies", "one listens: 1 copy", "none listens: 0 copies"],
    "elements/topics.py": [
        "room.kitchen.light: 3 of 3 patterns match",
        "room.kitchen.heat: 1 of 3 patterns match",
        "room.hall.light: 3 of 3 patterns match",
        "garden.light: 1 of 3 patterns match",
    ],
    "trio_driver.py": ["3 accepted", "three"],
    "zeromq.py": ["1² = 1, 2² = 4, 3² = 9", "10² = 100, 11² = 121, 12² = 144"],
}
"""What must be in the output, where running to the end does not prove it."""


@pytest.mark.timeout(180)
@pytest.mark.parametrize("path", EXAMPLES, ids=tree.name)
def test_example(path: Path) -> None:
    name = path.name
    command = [sys.executable, str(path), *OPTIONS.get(name, [])]
    timeout_s = SLOW_S.get(name, TIMEOUT_S)
    ran = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, cwd=tree.ROOT)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout
    for said in SAYS.get(name) or SAYS.get(f"{path.parent.name}/{name}", []):
        assert said in ran.stdout, ran.stdout


def test_a_node_type_with_every_hook_takes_less_than_fifty_lines() -> None:
    text = (tree.ROOT / "examples/node_type.py").read_text(encoding="utf-8")
    hooks = {name for name in vars(weft.NodeType) if name.startswith("on_")}
    assert hooks == set(re.findall(r"def (on_\w+)", text))
    assert len(text.splitlines()) < 50


def test_hello_takes_ten_lines_by_either_face() -> None:
    module = ast.parse((tree.ROOT / "examples/client/hello.py").read_text(encoding="utf-8"))
    functions = (each for each in module.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))
    lines = {each.name: (each.end_lineno or 0) - each.body[0].lineno for each in functions}  # less the docstring
    assert lines["simple"] <= 10
    assert lines["engine"] <= 10
