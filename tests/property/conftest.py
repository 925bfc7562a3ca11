"""How hard the properties are tried: quickly by default, for long with WEFT_HYPOTHESIS=deep."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

PROFILE = os.environ.get("WEFT_HYPOTHESIS", "quick")
ALWAYS = settings(deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])

settings.register_profile("quick", ALWAYS, max_examples=100, stateful_step_count=30)
settings.register_profile("deep", ALWAYS, max_examples=3_000, stateful_step_count=80)
settings.load_profile(PROFILE)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A deep search ends by its number of examples, not by a clock."""
    for item in items:
        if PROFILE == "deep" and item.path.parent.name == "property":
            item.add_marker(pytest.mark.timeout(0))
