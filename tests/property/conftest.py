"""A deep search of properties (WEFT_HYPOTHESIS=deep, see ../conftest.py) ends by its number of examples."""

from __future__ import annotations

import os

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """No clock stops a deep search."""
    for item in items:
        if os.environ.get("WEFT_HYPOTHESIS") == "deep" and item.path.parent.name == "property":
            item.add_marker(pytest.mark.timeout(0))
