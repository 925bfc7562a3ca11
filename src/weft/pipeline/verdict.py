"""The verdict on accounts: how far each passed the thresholds, and which.

Owns the one vectorised function over all accounts. Features of accounts come in as pandas gives them; scores and
reasons go out. It must never keep anything between two calls: the thresholds travel with it to the executors.
The rules are in docs/guides/pipeline.md, "Risk".
"""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd
from pyspark.sql import Column
from pyspark.sql.pandas.functions import pandas_udf

from weft.pipeline.risk import Rules


def judged(rules: Rules) -> Callable[[Column], Column]:
    """One vectorised function over all accounts: each rule adds how far its threshold was passed."""

    def judge(part: pd.DataFrame) -> pd.DataFrame:
        paid = part["payments"] > 0
        known = part["history"] >= rules.spike_history_min
        hits = {
            "velocity": part["payments"] / rules.payments_max,
            "takeover": part["failed_logins"] / rules.failed_logins_max * paid,
            "testing": part["small"] / rules.small_payments_max * (part["payments"] > part["small"]),
            "travel": (part["countries"] - rules.countries_max).clip(lower=0) * 1.0,
            "spike": part["amount_max"] / (part["usual"] * rules.spike_factor).clip(lower=0.01) * known,
        }
        table = pd.DataFrame(hits)
        over = table.where(table >= 1.0, 0.0)
        names = over.columns.to_numpy()
        reasons = [names[row > 0].tolist() for row in over.to_numpy()]
        return pd.DataFrame({"score": over.sum(axis=1).clip(upper=100.0), "reasons": reasons})

    return pandas_udf(judge, "score DOUBLE, reasons ARRAY<STRING>")  # type: ignore[call-overload,no-any-return]
