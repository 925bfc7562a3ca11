"""Fixtures of the system tests: nodes on folders of their own.

Owns the life of each node in a test. Only weft is tested here, so a run against another broker skips all of it. It
must never let a node outlive its test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .living import LivingNode

HERE = Path(__file__).parent
StartNode = Callable[..., LivingNode]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.weft_only)


@pytest.fixture
def start_node(tmp_path: Path) -> Iterator[StartNode]:
    """A function that starts a node on a folder: by default one inside the test's own."""
    nodes: list[LivingNode] = []

    def start(folder: Path | None = None, *options: str) -> LivingNode:
        nodes.append(LivingNode(folder or tmp_path / "data", *options))
        return nodes[-1]

    yield start
    for node in nodes:
        node.end()


@pytest.fixture
def node(start_node: StartNode) -> LivingNode:
    return start_node()
