"""Run the load generators and judge what they say.

Owns the way a figure comes about: brokers take turns, every repetition is one run, a run that something else
disturbed is repeated, and the median stands. A measure (measures.py) says what to run and gets the runs back; rows go
to the report. It must never know what a measure means. Why medians and turns: a shared machine drifts, and what
drifts must hit every broker alike.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from brokers import TITLES, Broker, Pool, pinned

OTHER_CPU_MAX = 0.15
RUN_TIMEOUT_S = 300.0

Run = dict[str, float]
Runs = dict[str, list[Run]]


class BenchError(Exception):
    """Something needed for a measure did not work; the text says what."""


@dataclass(frozen=True)
class Row:
    """One line of the result: a figure of weft beside the same figure of others, and whether the target is reached."""

    what: str
    unit: str
    figures: dict[str, float]
    target: str = ""
    met: bool | None = None
    spread: dict[str, tuple[float, float]] = field(default_factory=dict)


@dataclass
class Bench:
    """What a measure may use: the brokers, the load generators, and how long and how often to run."""

    pool: Pool
    programs: Path
    repetitions: int
    secs: int
    say: Callable[[str], None]
    attempts_max: int = 3
    waiting: int = 1_000_000
    runs: int = 0
    disturbed: list[tuple[str, float]] = field(default_factory=list)
    round_trips: dict[str, dict[int, tuple[float, float]]] = field(default_factory=dict)

    def peers(self, *names: str) -> list[str]:
        """weft and, of the others, those that are installed."""
        return ["weft", *(name for name in names if self.pool.installed(name))]

    def load(
        self,
        program: str,
        mode: str,
        broker: Broker | None,
        options: Mapping[str, int | str],
        *,
        one_core: bool = False,
    ) -> Run:
        """One run of a load generator."""
        words = [f"{key}={value}" for key, value in options.items()]
        command = [str(self.programs / program), mode, *(broker.options if broker else []), *words]
        name = broker.name if broker else program if program in TITLES else "bare"
        self.say(" ".join([TITLES[name] + ":", program, mode, *words]))
        with pinned(one_core):
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False)
            except subprocess.TimeoutExpired:
                raise BenchError(f"{' '.join(command)}: no end after {RUN_TIMEOUT_S:.0f} s") from None
        if done.returncode:
            raise BenchError(f"{' '.join(command)}: {done.stderr.strip() or f'ended with {done.returncode}'}")
        run: Run = json.loads(done.stdout)
        if run.get("missing"):
            raise BenchError(f"{' '.join(command)}: {run['missing']:.0f} messages did not arrive")
        return run

    def script(self, path: str | Path, *words: object, env: Mapping[str, str] | None = None) -> Run:
        """One run of a program in Python, which prints its figures as JSON."""
        command = [sys.executable, str(path), *map(str, words)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False, env=env)
        except subprocess.TimeoutExpired:
            raise BenchError(f"{' '.join(command)}: no end after {RUN_TIMEOUT_S:.0f} s") from None
        if done.returncode:
            raise BenchError(f"{' '.join(command[1:])}: {done.stderr.strip().splitlines()[-1:]}")
        self.runs += 1
        run: Run = json.loads(done.stdout)
        return run

    def turns(self, runners: Mapping[str, Callable[[], Run]], each: int = 1) -> Runs:
        """Every runner once, and again, until each has its repetitions, or so many times as many."""
        runs: Runs = {name: [] for name in runners}
        for _ in range(self.repetitions * each):
            for name, runner in runners.items():
                runs[name].append(self._quiet_run(name, runner))
                self.runs += 1
        return runs

    def _quiet_run(self, name: str, runner: Callable[[], Run]) -> Run:
        """A run that nothing disturbed, or the least disturbed of a few."""
        runs: list[Run] = []
        while len(runs) < self.attempts_max:
            runs.append(runner())
            if runs[-1].get("other_cpu", 0) <= OTHER_CPU_MAX:
                return runs[-1]
        quietest = min(runs, key=lambda run: run["other_cpu"])
        self.disturbed.append((name, quietest["other_cpu"]))
        return quietest


def medians(runs: Runs, key: str) -> dict[str, float]:
    return {name: statistics.median(run[key] for run in of_one) for name, of_one in runs.items()}


def spreads(runs: Runs, key: str) -> dict[str, tuple[float, float]]:
    return {name: (min(run[key] for run in of_one), max(run[key] for run in of_one)) for name, of_one in runs.items()}


def row(what: str, unit: str, runs: Runs, key: str, *, target: str = "", met: bool | None = None) -> Row:
    return Row(what, unit, medians(runs, key), target, met, spreads(runs, key))


def all_of(*conditions: bool | None) -> bool | None:
    """Met when every condition is; unknown when one cannot be judged and none is missed."""
    known: Sequence[bool] = [condition for condition in conditions if condition is not None]
    return False if not all(known) else (None if len(known) < len(conditions) else True)


def at_most(figures: dict[str, float], factor: float, of: str) -> bool | None:
    return figures["weft"] <= factor * figures[of] if of in figures else None
