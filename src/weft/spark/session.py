"""A Spark session that starts fast and keeps quiet: what `weft pipeline`, the tests and the examples run on.

Owns the settings of a local session and four cures for its slow start: a class data archive of the JVM, a Spark home
from which workers import compiled modules, processes of Python that are forked from one that has imported everything,
and a checkpoint manager that forks no process per file. A name, a master
and more settings come in, a `SparkSession` goes out.
It must never be needed: the data source works in any session, and on a cluster only the plain settings apply.
The figures behind each cure are in docs/guides/spark.md, "Start".
"""

from __future__ import annotations

import os
import shutil
import sys
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pyspark
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from weft.model.errors import Unavailable
from weft.spark.nursery import ready_python
from weft.spark.source import register

MASTER = "local[2,3]"
"""Two threads, and three attempts per task: plain `local[2]` fails a query at the first hiccup of a network."""

CHECKPOINTS = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
SUBMITTED = "PYSPARK_GATEWAY_PORT"
"""Set by spark-submit, which has chosen the master and started the JVM already."""

PLAIN = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.streaming.numRecentProgressUpdates": "50",
    # Else every column of every expression asks the JVM whether anybody debugs.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
}
LOCAL = {
    "spark.default.parallelism": "2",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.python.daemon.module": "weft._spark_daemon",
    # As Spark has it for workers of tasks: the process that plans a query has no use for numpy's threads either.
    "spark.executorEnv.OMP_NUM_THREADS": "1",
    "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINTS,
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "1024",
}
"""A session of this machine: few partitions, no network but the loopback, no process per checkpoint file."""

JAVA = (
    # Rows are short-lived and many, pauses hurt nobody: the collector for throughput.
    "-XX:+UseParallelGC",
    # Arrow would check each value that Spark takes, of each column and row, for bounds and for null. Spark itself asks
    # for null first and counts its rows; the checks are a tenth of what it spends on a row of a stream.
    "-Darrow.enable_unsafe_memory_access=true",
    "-Darrow.enable_null_check_for_get=false",
)

ARCHIVES_MAX = 4
"""Class archives kept: each is 100 MB and more, and belongs to one version of Java and Spark."""

NO_WORD_OF_ARCHIVES = "-Xlog:cds=off -Xlog:cds+dynamic=off"
"""One that does not fit, since a session has other jars, is left aside; Java would say so on standard output."""

LOGGING = """\
status = error
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex{short}
rootLogger.level = error
rootLogger.appenderRef.console.ref = console
# A query that is stopped in the middle of a batch says so with a stack trace in each of these.
logger.write.name = org.apache.spark.sql.execution.datasources.v2
logger.write.level = off
logger.utils.name = org.apache.spark.util.Utils
logger.utils.level = off
logger.executor.name = org.apache.spark.executor.Executor
logger.executor.level = off
logger.tasks.name = org.apache.spark.scheduler.TaskSetManager
logger.tasks.level = off
logger.python.name = org.apache.spark.api.python
logger.python.level = off
"""


def session(
    name: str = "weft", *, master: str | None = None, conf: Mapping[str, str] | None = None, java_options: str = ""
) -> SparkSession:
    """The session of this process, made if there is none, with `format("weft")` known to it."""
    builder = SparkSession.builder.appName(name)
    python = None
    if SUBMITTED in os.environ:
        settings = dict(PLAIN)
    else:
        settings = {"spark.master": master or MASTER, **PLAIN}
        chosen = os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        if settings["spark.master"].startswith("local"):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
            settings |= LOCAL
            if SparkSession.getActiveSession() is None:
                settings |= _quick_start(name, java_options)
                python = ready_python() if chosen == sys.executable else None
    for key, value in {**settings, **(conf or {})}.items():
        builder = builder.config(key, value)
    with _python(python):
        spark = _started(builder)
    register(spark)
    return spark


@contextmanager
def _python(path: str | None) -> Iterator[None]:
    """Let this be Python for what Spark starts in a session made meanwhile, and for nobody else's processes."""
    before = os.environ.get("PYSPARK_PYTHON")
    if path is not None:
        os.environ["PYSPARK_PYTHON"] = path
    try:
        yield
    finally:
        if path is not None and before is not None:
            os.environ["PYSPARK_PYTHON"] = before


def _started(builder: SparkSession.Builder) -> SparkSession:
    try:
        return builder.getOrCreate()
    except PySparkRuntimeError as error:
        if "JAVA_GATEWAY_EXITED" not in str(error):
            raise
        home = os.environ.get("JAVA_HOME")
        if shutil.which("java", path=str(Path(home) / "bin") if home else None) is None:
            where = f"none in JAVA_HOME ({home})" if home else "none in PATH"
            raise Unavailable(f"Spark needs Java 17 or newer, and there is {where}") from None
        raise Unavailable("Spark ended before it began; what it said about it stands above") from None


def _quick_start(name: str, java_options: str) -> Mapping[str, str]:
    """Archive, home and logging, kept in the user's cache; a cache that cannot be written costs the speed only."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "weft" / f"spark-{pyspark.__version__}"
    options = [*JAVA, *([java_options] if java_options else [])]
    try:
        cache.mkdir(parents=True, exist_ok=True)
        os.environ.setdefault("SPARK_HOME", str(_compiled_home(cache / "home")))
        logging = cache / "log4j2.properties"
        if not logging.exists() or logging.read_text(encoding="utf-8") != LOGGING:
            logging.write_text(LOGGING, encoding="utf-8")
        options += [f"-Dlog4j2.configurationFile=file:{logging}", _archive(cache, name)]
    except OSError:
        return {"spark.driver.extraJavaOptions": " ".join(options)}
    return {"spark.driver.extraJavaOptions": " ".join(options)}


def _compiled_home(home: Path) -> Path:
    """A Spark home without `python/lib/pyspark.zip`: workers then import the installed, compiled modules."""
    installed = Path(pyspark.__file__).parent
    (home / "python" / "lib").mkdir(parents=True, exist_ok=True)
    for folder in ("bin", "sbin", "jars"):
        link = home / folder
        if not link.exists():
            link.unlink(missing_ok=True)
            link.symlink_to(installed / folder)
    return home


def _archive(cache: Path, name: str) -> str:
    """Use this program's class archive; where there is none, the JVM writes one when it ends.

    One per program, since an archive helps with the classes of the run that wrote it and no others.
    """
    java = os.path.realpath(shutil.which("java") or os.environ.get("JAVA_HOME", ""))
    archive = cache / f"classes-{zlib.crc32(f'{java} {name}'.encode()):08x}.jsa"
    if archive.exists():
        os.utime(archive)
        return f"-Xshare:auto -XX:SharedArchiveFile={archive} {NO_WORD_OF_ARCHIVES}"
    used = sorted(cache.glob("classes-*.jsa"), key=lambda path: path.stat().st_mtime)
    for old in used[: -ARCHIVES_MAX + 1]:
        old.unlink(missing_ok=True)
    return f"-XX:ArchiveClassesAtExit={archive} {NO_WORD_OF_ARCHIVES}"
