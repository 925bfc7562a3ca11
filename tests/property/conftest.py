"""How hard the properties are tried: quickly by default, for long with WEFT_HYPOTHESIS=deep."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

ALWAYS = settings(deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])

settings.register_profile("quick", ALWAYS, max_examples=60, stateful_step_count=30)
settings.register_profile("deep", ALWAYS, max_examples=3_000, stateful_step_count=80)
settings.load_profile(os.environ.get("WEFT_HYPOTHESIS", "quick"))
