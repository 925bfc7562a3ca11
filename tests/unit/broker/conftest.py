"""The fixture of broker tests."""

from __future__ import annotations

import pytest

from unit.broker.desk import Desk


@pytest.fixture
def desk() -> Desk:
    return Desk()
