"""Fabrics from seeds: what `simulation.fabric` promises, for a few worlds of every shape."""

from __future__ import annotations

import random

import pytest

from simulation import fabric, mortal
from simulation.fabric import Failed, World
from simulation.mortal import Mortal
from simulation.shapes import SHAPES, distances, edges, neighbours

WORLDS = [(1, "tree", 9), (2, "ring", 7), (3, "complete", 7), (9, "mesh", 20), (204, "mesh", 11), (207, "mesh", 13)]

MORTAL_WORLDS = [
    (2, "tree", 7),  # a route that may hold two messages was never given credit for them
    (3, "ring", 9),  # a message had passed the new gateway before, and found the old one left
    (8, "mesh", 6),
]


@pytest.mark.parametrize(("seed", "shape", "size"), WORLDS)
def test_every_message_arrives_once_whatever_is_cut_reset_or_paused(seed: int, shape: str, size: int) -> None:
    result = World(seed, shape, size).run()
    assert result.messages == fabric.CALM_MESSAGES + fabric.FAULTY_MESSAGES
    assert result.converged_s < 0.1


@pytest.mark.parametrize(("seed", "shape", "size"), MORTAL_WORLDS)
def test_nothing_that_was_answered_for_is_lost_or_doubled_whoever_dies(seed: int, shape: str, size: int) -> None:
    result = Mortal(seed, shape, size).run()
    assert result.messages == mortal.MESSAGES
    assert result.killed + result.unpowered > 5


def test_a_seed_is_a_world_to_the_last_byte() -> None:
    again = World(5, "ring", 5).run()
    assert World(5, "ring", 5).run() == again
    assert World(6, "ring", 5).run().trace != again.trace
    assert Mortal(5, "tree", 3).run() == Mortal(5, "tree", 3).run()


def test_a_broken_promise_is_told_with_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two islands, and a check that believes they are linked."""
    monkeypatch.setattr(fabric, "edges", lambda *_: [("n000", "n001"), ("n002", "n003")])
    monkeypatch.setattr(fabric, "SETTLE_S", 3.0)
    world = World(8, "tree", 4)
    world.graph = {**world.graph, "n001": ["n000", "n002"], "n002": ["n003", "n001"]}
    with pytest.raises(Failed, match="make sim-fabric DEATHS=0 SEED=8 SHAPE=tree NODES=4"):
        world.run()


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes_are_connected(shape: str) -> None:
    graph = neighbours(edges(shape, [f"n{at}" for at in range(10)], random.Random(1)))
    assert len(distances(graph, "n0")) == len(graph) == 10
