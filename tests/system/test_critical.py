"""Messages that must not get lost, ever, through kills: a few here, a million by `make never-lost`."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from system.critical import Outcome, run


def test_nothing_that_must_not_get_lost_is_lost(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    outcome = run(tmp_path, 4_000, seed, life_s=(0.1, 0.4))
    assert outcome.is_good, f"SEED={seed}: {outcome}"
    assert outcome.confirmed == 4_000
    assert outcome.risked_lost == outcome.risked, "the last death takes all that is in memory only"


@pytest.mark.parametrize(
    "bad",
    [
        Outcome(confirmed=0, kills=2, lost=0, twice=0, risked=0, risked_lost=0),
        Outcome(confirmed=9, kills=0, lost=0, twice=0, risked=0, risked_lost=0),
        Outcome(confirmed=9, kills=2, lost=1, twice=0, risked=0, risked_lost=0),
        Outcome(confirmed=9, kills=2, lost=0, twice=1, risked=0, risked_lost=0),
    ],
)
def test_what_went_wrong_is_not_called_good(bad: Outcome) -> None:
    assert not bad.is_good
