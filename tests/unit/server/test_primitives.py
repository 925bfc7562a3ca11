"""Everything that happens to messages is made of three operations: deliver, bind and unbind.

Owns the proof that programs have no fourth, and need none. The kernel's own interface is looked through: what it can be
told, and what it can be handed. So is each messaging element in `examples/elements`, for what it uses beside places.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import typing
from pathlib import Path

import pytest

from house import tree
from weft._kernel import Engine
from weft.model.changes import Bind, Change, Unbind

PLACES = {"declare_queue", "declare_exchange", "delete_queue"}
READS = {"receive", "snapshot"}
ELEMENTS = tree.files(".py", under=("examples/elements",))


def test_the_kernel_is_told_from_where_to_where_by_two_changes() -> None:
    fields = {change: [field.name for field in dataclasses.fields(change)] for change in typing.get_args(Change)}
    between = [change for change, names in fields.items() if {"source", "destination"} & {*names}]
    assert between == [Bind, Unbind]
    assert fields[Bind] == fields[Unbind], "so that each bind has its unbind"


def test_the_kernel_is_handed_messages_by_one_call() -> None:
    methods = {name: getattr(Engine, name) for name in dir(Engine) if not name.startswith("_")}
    takes = {name: inspect.signature(method).parameters for name, method in methods.items() if callable(method)}
    assert [name for name, parameters in takes.items() if "body" in parameters] == ["publish"]


def test_there_are_nine_elements() -> None:
    assert len(ELEMENTS) == 9


@pytest.mark.parametrize("path", ELEMENTS, ids=tree.name)
def test_an_element_is_made_of_places_and_the_three(path: Path) -> None:
    module = ast.parse(path.read_text(encoding="utf-8"))
    attributes = (each for each in ast.walk(module) if isinstance(each, ast.Attribute))
    used = {each.attr for each in attributes if isinstance(each.value, ast.Name) and each.value.id == "node"}
    assert used - PLACES - READS <= {"send", "bind", "unbind"}
    assert "send" in used
