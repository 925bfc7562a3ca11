"""`weft pipeline`: run the jobs over streams, show what they found, keep streams in a lake, send messages again.

Owns the options and the lines that are printed. The work is in `weft.pipeline` and `weft.spark`; Spark is started only
by what needs it.
It must never print a traceback for what an operator can cause.
The guide is docs/guides/pipeline.md.
"""

from __future__ import annotations

import argparse
import fcntl
import importlib
import os
import signal
import sys
import threading
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from weft.cli.options import at_least_one, printable
from weft.model.errors import ConfigError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from weft.pipeline.run import Settings

LAKE = "weft-lake"
KEEP_DAYS_MAX = 36_500
TRIGGER_MAX_S = 86_400
LOOK_S = 1
"""How often is looked whether a run is to end."""
LISTED_MAX = 1_000
"""Messages that a search shows."""
JOBS = "traffic, integrity, risk, capacity, topology, connections"


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parts = parser.add_subparsers(dest="part", required=True, metavar="run | report | tier | replay")
    run = parts.add_parser("run", help="run the jobs over streams", allow_abbrev=False)
    _add_source(run)
    run.add_argument("--once", action="store_true", help="read what is there now, then end")
    run.add_argument("--jobs", metavar="NAMES", help=f"which, by commas (default: all: {JOBS})")
    run.add_argument("--lake", default=LAKE, metavar="DIR", help=f"where results are kept (default: {LAKE})")
    run.add_argument("--answers-to", metavar="URL", help="node that gets results as messages (default: that of --url)")
    run.add_argument("--trigger", type=float, default=1.0, metavar="SECONDS", help="time between batches (default: 1)")
    run.add_argument("--rows", metavar="N", help="rows of a batch at most (default: 200000)")
    run.add_argument("--no-bronze", action="store_true", help="keep no raw rows")
    run.add_argument(
        "--keep",
        type=float,
        default=7.0,
        metavar="DAYS",
        help="bronze, and silver with a row per message, are kept so long (default: 7)",
    )
    run.add_argument("--master", metavar="URL", help="master of a Spark cluster (default: local[2,3])")
    report = parts.add_parser("report", help="show what the last run found", allow_abbrev=False)
    report.add_argument("--lake", default=LAKE, metavar="DIR", help=f"as given to run (default: {LAKE})")
    report.add_argument("--html", metavar="FILE", help="write a page with plots, too")
    tier = parts.add_parser("tier", help="copy streams into the lake as Parquet", allow_abbrev=False)
    _add_source(tier)
    tier.add_argument("--lake", default=LAKE, metavar="DIR", help=f"folder or URL (default: {LAKE})")
    tier.add_argument(
        "--file-rows", type=at_least_one, default=1_000_000, metavar="N", help="rows of a file (default: 1000000)"
    )
    tier.add_argument("--all", action="store_true", help="the last file, too, though it is not full yet")
    tier.add_argument("--delta", action="store_true", help="make Delta tables of the files (pip install 'weft[delta]')")
    replay = parts.add_parser("replay", help="find messages and send them again, marked", allow_abbrev=False)
    _add_replay(replay)


def _add_source(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", metavar="URL", help="node to read from (amqp://…)")
    parser.add_argument("--data-dir", metavar="DIR", help="data folder of a node on this machine, read without it")
    parser.add_argument("--streams", default="*", metavar="NAMES", help="names or patterns, by commas (default: all)")


def _add_replay(parser: argparse.ArgumentParser) -> None:
    _add_source(parser)
    parser.add_argument("--lake", metavar="DIR", help="lake with the history of the streams")
    parser.add_argument("--name", required=True, help="name of this replay; every message sent carries it")
    parser.add_argument("--to", metavar="URL", help="node to send to; without it what was found is only listed")
    parser.add_argument("--address", metavar="EXCHANGE/KEY", help="send there (default: where each message went first)")
    parser.add_argument(
        "--rate", type=at_least_one, default=1_000, metavar="N", help="messages per second (default: 1000)"
    )
    parser.add_argument("--since", metavar="TIME")
    parser.add_argument("--until", metavar="TIME")
    parser.add_argument("--match-address", metavar="PATTERN", help="routing key, with * and ?")
    parser.add_argument("--message-id", metavar="ID")
    parser.add_argument("--header", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--contains", metavar="TEXT", help="text in the body")


def run(options: argparse.Namespace) -> int:
    """Do what the first word says."""
    try:
        return {"run": _run, "report": _report, "tier": _tier, "replay": _replay}[options.part](options)
    except ImportError as error:
        raise ConfigError(f"the pipeline needs Spark: pip install 'weft[spark]' ({error})") from None


def _source(options: argparse.Namespace) -> dict[str, str]:
    found = {"streams": options.streams, "url": options.url, "path": options.data_dir}
    if not options.url and not options.data_dir and not getattr(options, "lake", None):
        raise ConfigError("say where to read: --url of a node, or --data-dir")
    return {key: value for key, value in found.items() if value}


def _session(master: str | None = None, *, brief: bool = False) -> SparkSession:
    """A session; a brief run is over before the better of Java's two compilers pays off."""
    from weft.spark import session

    # Spark needs it later, and importing it takes as long as a third of Java's start: both at once.
    threading.Thread(target=importlib.import_module, args=("pandas",), daemon=True).start()
    handler = signal.getsignal(signal.SIGINT)
    made = session("weft pipeline", master=master, java_options="-XX:TieredStopAtLevel=1" if brief else "")
    # Spark has put its own there, even where interrupts were to be ignored.
    signal.signal(signal.SIGINT, handler)
    return made


def _run(options: argparse.Namespace) -> int:
    from weft.pipeline.jobs import choose
    from weft.pipeline.run import Settings

    if not options.url and not options.data_dir:
        raise ConfigError("say where to read: --url of a node, or --data-dir")
    if not 0 <= options.trigger <= TRIGGER_MAX_S:
        raise ConfigError(f"--trigger is a number of seconds from 0 to {TRIGGER_MAX_S}")
    source = _source(options) | ({"maxRowsPerTrigger": options.rows} if options.rows else {})
    lake = options.lake if "://" in options.lake else str(Path(options.lake).absolute())
    settings = Settings(
        source=source, lake=lake, jobs=choose(options.jobs), answers_to=options.answers_to or options.url,
        once=options.once, trigger_s=options.trigger, bronze=not options.no_bronze, keep=_kept(options.keep),
    )  # fmt: skip
    with _alone(lake, "running"):
        return _go(options, settings)


def _go(options: argparse.Namespace, settings: Settings) -> int:
    from weft.pipeline.lease import Lease

    session = _session(options.master, brief=options.once)
    told_to_end = threading.Event()

    def tell(number: int, _frame: object) -> None:
        told_to_end.set()
        # Who cannot wait says it again.
        signal.signal(number, signal.SIG_DFL)

    with _when_told_to_end(tell):
        if "://" not in settings.lake:
            return _follow(options, settings, session, told_to_end)
        with Lease(session, settings.lake, say=_say) as lease:
            return _follow(options, settings, session, told_to_end, lease.check)


@contextmanager
def _when_told_to_end(act: Callable[[int, object], None] | signal.Handlers) -> Iterator[None]:
    """What signals do meanwhile; those that are ignored stay so.

    An exception that comes in the middle of a word to Java has Python and Java tell of it at length.
    """
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        for number, handler in before.items():
            if handler is not signal.SIG_IGN:
                signal.signal(number, act)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _say(line: str) -> None:
    print(line, flush=True)


def _follow(
    options: argparse.Namespace,
    settings: Settings,
    session: SparkSession,
    told_to_end: threading.Event,
    check: Callable[[], None] = lambda: None,
) -> int:
    from weft.pipeline.run import Run

    pipeline = Run(session, settings, say=_say, check=check)
    _say(f"reading {options.streams} of {options.url or options.data_dir} into {settings.lake}")
    with _in_one_line():
        query = pipeline.start()
        while not query.awaitTermination(LOOK_S):
            if told_to_end.is_set():
                _say("ending")
                pipeline.end(query)
                break
        pipeline.write_gold()
    _say(f"done; see it with: weft pipeline report --lake {options.lake} --html report.html")
    return 0


@contextmanager
def _alone(lake: str, work: str) -> Iterator[None]:
    """See that no other run of this machine does this work on the lake: two would undo each other's batches, or files.

    A lake that is a URL has a lease for runs instead, once Spark can reach it.
    """
    if "://" in lake:
        yield
        return
    try:
        Path(lake).mkdir(parents=True, exist_ok=True)
        held = os.open(Path(lake, work), os.O_CREAT | os.O_RDWR)
    except OSError as error:
        raise ConfigError(f"--lake {lake}: {error.strerror}") from None
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"another run uses the lake {lake}: wait for its end, or give another --lake") from None
        yield
    finally:
        os.close(held)


def _kept(days: float) -> timedelta:
    """Accounts are judged by their last day, so that much is needed."""
    if not 1 <= days <= KEEP_DAYS_MAX:
        raise ConfigError(f"--keep is a number of days from 1 to {KEEP_DAYS_MAX}")
    return timedelta(days=days)


@contextmanager
def _in_one_line() -> Iterator[None]:
    """Let Spark's errors be what they say, without its traces."""
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        raise Unavailable(_reason(error)) from None


def _reason(error: Exception) -> str:
    """What our own code said inside Spark's many lines; else its first line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith("weft.") and ":" in line]
    return ours[-1].partition(": ")[2] if ours else lines[0]


def _report(options: argparse.Namespace) -> int:
    from weft.pipeline.report import html, text
    from weft.pipeline.store import Store

    store = Store(options.lake)
    told = text(store, printable)
    if not told.strip():
        raise ConfigError(f"there is nothing in {options.lake} yet: weft pipeline run --lake {options.lake}")
    print(told, end="")
    if options.html:
        Path(options.html).write_text(html(store), encoding="utf-8")
        print(f"\nwritten to {options.html}")
    return 0


def _tier(options: argparse.Namespace) -> int:
    from weft.spark.lake import Lake, tier
    from weft.spark.options import read_options
    from weft.spark.places import open_log

    log = open_log(read_options(_source(options), streaming=False))
    with _alone(options.lake, "tiering"):
        reached = tier(log, Lake(options.lake), options.streams.split(","), rows=options.file_rows, partial=options.all)
    for shard, end in sorted(reached.items()):
        print(f"{shard}: in the lake up to offset {end}")
    if not reached:
        raise ConfigError(f"no stream fits {options.streams}")
    if options.delta:
        try:
            from weft.spark.delta import publish
        except ImportError:
            raise ConfigError("--delta needs delta-rs: pip install 'weft[delta]'") from None
        for table, version in publish(Lake(options.lake), options.streams.split(",")).items():
            print(f"Delta table {table}, version {version}")
    return 0


def _replay(options: argparse.Namespace) -> int:
    from weft.pipeline.audit import Search, find, replay

    if any("=" not in word for word in options.header):
        raise ConfigError("--header is NAME=VALUE")
    headers = dict(word.partition("=")[::2] for word in options.header)
    search = Search(
        since=options.since, until=options.until, address=options.match_address, message_id=options.message_id,
        headers=headers, body_contains=options.contains,
    )  # fmt: skip
    source = _source(options) | ({"lake": options.lake} if options.lake else {})
    with _in_one_line():
        session = _session()
    with _in_one_line(), _when_told_to_end(signal.SIG_DFL):
        rows = find(session.read.format("weft").options(**source).load(), search)
        if not options.to:
            shown = rows.select("enqueue_time", "stream", "offset", "exchange", "routing_key", "message_id")
            for row in shown.take(LISTED_MAX):
                print(*(printable(str(value)) if value is not None else "-" for value in row), sep="\t")
            return 0
        chosen = replay(rows, options.name, address=options.address)
        count = chosen.count()
        print(f"sending {count} messages to {options.to}, {options.rate}/s", file=sys.stderr)
        sending = {"url": options.to, "producer": f"replay.{options.name}", "ratePerSecond": options.rate}
        chosen.coalesce(1).write.format("weft").options(**sending).mode("append").save()
    print(f"{count} messages sent again as replay {options.name}")
    return 0
