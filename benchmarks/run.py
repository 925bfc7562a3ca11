"""Measure weft beside its peers and say whether it is as fast and as small as it must be.

The command behind `make bench`: builds the load generators, starts the brokers, runs the measures one after another,
prints a table and writes results/<date>.md. Options come in; text and files go out. It must never decide what a
measure is (measures.py) or how a figure comes about (bench.py). Exit code 0: everything was measured, whatever the
verdicts; 1: something could not be measured; 2: wrong use.
"""

from __future__ import annotations

import argparse
import datetime
import resource
import shutil
import subprocess
import sys
from pathlib import Path

from bench import Bench, BenchError, Row
from brokers import Pool, build_proton_broker
from measures import MEASURES, Measure
from report import Result, noise, summary, text_table

from peers import PeerError

FOLDER = Path(__file__).resolve().parent
LOAD = FOLDER / "load"
NEEDS = {
    "cc": "gcc",
    "make": "make",
    "amqp.h": "librabbitmq-dev",
    "amqp_tcp_socket.h": "librabbitmq-dev",
    "proton/proactor.h": "libqpid-proton11-dev",
}
REPETITIONS = 3
SECS = 5
WAITING = 1_000_000
QUICK_SECS = 2


def parse(arguments: list[str]) -> argparse.Namespace:
    measures = "\n".join(f"  {measure.name:12} {measure.help}" for measure in MEASURES)
    parser = argparse.ArgumentParser(
        prog="benchmarks/run.py", description=__doc__.split("\n")[0], epilog=f"measures:\n{measures}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument(
        "--quick", action="store_true", help=f"the main measures, once, {QUICK_SECS} s each; writes no page"
    )
    parser.add_argument("--only", action="append", metavar="NAME", choices=[measure.name for measure in MEASURES],
                        help="this measure (may be repeated); writes no page")  # fmt: skip
    parser.add_argument("--repetitions", type=int, default=REPETITIONS, help=f"runs per figure (default {REPETITIONS})")
    parser.add_argument("--secs", type=int, default=SECS, help=f"seconds per run (default {SECS})")
    parser.add_argument("--waiting", type=int, default=WAITING,
                        help=f"messages that wait in `backlog` (default {WAITING:,}; 1.1 KB of disk each)")  # fmt: skip
    options = parser.parse_args(arguments)
    if min(options.repetitions, options.secs, options.waiting) < 1:
        parser.error("--repetitions, --secs and --waiting are at least 1")
    if options.quick:
        options.repetitions, options.secs = 1, QUICK_SECS
    return options


def missing_packages() -> list[str]:
    """Debian packages without which the load generators cannot be built."""
    missing = [NEEDS[tool] for tool in ("cc", "make") if shutil.which(tool) is None]
    if missing:
        return missing
    for header, package in NEEDS.items():
        if header.endswith(".h") and package not in missing:
            command = ["cc", "-E", "-include", header, "-x", "c", "/dev/null"]
            if subprocess.run(command, capture_output=True, check=False).returncode:
                missing.append(package)
    return missing


def build() -> Path:
    """Build the load generators; the folder they are in."""
    missing = missing_packages()
    if missing:
        raise BenchError(f"the load generators need {', '.join(missing)}: apt-get install {' '.join(missing)}")
    done = subprocess.run(["make", "--silent", "-C", str(LOAD)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchError(f"make -C {LOAD} failed:\n{done.stderr}")
    return LOAD / "bin"


def raise_open_files_limit(wanted: int) -> None:
    """Brokers and clients inherit it: thousands of connections need a file each."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        say(f"only {hard} files may be open here: measures with more connections will fail (raise ulimit -Hn)")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard if hard != resource.RLIM_INFINITY else wanted, hard))


def say(words: str) -> None:
    print(f"  {words}", file=sys.stderr, flush=True)


def chosen(options: argparse.Namespace) -> list[Measure]:
    if options.only:
        return [measure for measure in MEASURES if measure.name in options.only]
    return [measure for measure in MEASURES if measure.quick or not options.quick]


def measure_all(bench: Bench, measures: list[Measure], quick: bool) -> tuple[list[Row], list[str]]:
    rows: list[Row] = []
    failures: list[str] = []
    for measure in measures:
        say(f"— {measure.name}: {measure.help}")
        try:
            rows += measure.run(bench, quick)
        except (BenchError, PeerError, OSError) as error:
            failures.append(f"{measure.name}: {error}")
            say(f"{measure.name} could not be measured: {error}")
    return rows, failures


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    raise_open_files_limit(20_000)
    try:
        programs = build()
        proton_broker = build_proton_broker(programs)
    except (BenchError, subprocess.CalledProcessError) as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 1
    with Pool(proton_broker) as pool:
        if not pool.installed("rabbitmq"):
            say("RabbitMQ is not installed (apt-get install rabbitmq-server): weft is measured alone")
        attempts_max = 1 if options.quick else 3
        bench = Bench(pool, programs, options.repetitions, options.secs, say, attempts_max, options.waiting)
        rows, failures = measure_all(bench, chosen(options), options.quick)
    if rows:
        print(f"\n{text_table(rows)}\n\n{summary(rows)}")
    disturbance = noise(bench.disturbed, bench.runs)
    if disturbance:
        print(disturbance)
    for line in failures:
        print(f"not measured: {line}")
    if rows and not options.quick and not options.only:
        date = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
        result = Result(date, rows, bench.round_trips, disturbance, failures, options.repetitions, options.secs)
        print(f"written to {result.write(FOLDER / 'results')}")
    return 1 if failures else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
