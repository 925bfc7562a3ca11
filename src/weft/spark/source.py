"""`format("weft")`: streams of a node as tables and streams of Spark, rows of Spark as messages.

Owns the name and the way from Spark's calls to readers and writers. Spark's options and schemas come in; readers and
writers that can travel to executors go out.
It must never touch a message or a connection itself.
The interface is Spark's Python Data Source API (pyspark.sql.datasource).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from weft._spark_daemon import hush
from weft.spark.options import WriteOptions, read_options, write_options
from weft.spark.reader import BatchReader, StreamReader
from weft.spark.schema import STREAM, check_message

if TYPE_CHECKING:
    from weft.spark.writer import BatchWriter, StreamWriter

# Whichever process imports the source for Spark.
hush()


class WeftSource(DataSource):
    """The data source that Spark asks."""

    @classmethod
    def name(cls) -> str:
        """What stands in `format(...)`."""
        return "weft"

    def schema(self) -> StructType:
        """All columns; a narrower schema of the user's reads only those."""
        return STREAM

    def reader(self, schema: StructType) -> BatchReader:
        """For `spark.read`. It takes no conditions: Spark would give later queries the rows of the first (0030)."""
        return BatchReader(read_options(self.options, streaming=False), schema)

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802 - Spark's name
        """For `spark.readStream`."""
        return StreamReader(read_options(self.options, streaming=True), schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:  # noqa: ARG002 - messages cannot be undone
        """For `df.write`; what is wrong with columns or options is told here, before anything is sent."""
        from weft.spark.writer import BatchWriter

        return BatchWriter(self._checked(schema), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: ARG002, N802
        """For `df.writeStream`."""
        from weft.spark.writer import StreamWriter

        return StreamWriter(self._checked(schema), schema)

    def _checked(self, schema: StructType) -> WriteOptions:
        options = write_options(self.options)
        check_message(schema, has_address=options.routing_key is not None or options.exchange is not None)
        return options


def register(spark: SparkSession | None = None) -> None:
    """Make `format("weft")` known to a session: this one, or the active one. To do it again changes nothing."""
    session: Any = spark or SparkSession.getActiveSession()
    if session is None:
        return
    try:
        session.dataSource.register(WeftSource)
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
        # Whether the name is taken Spark asks the session that is active, which need not be the one that is asked.
        with _active(session):
            session.dataSource.register(WeftSource)


@contextmanager
def _active(session: Any) -> Iterator[None]:
    """Let a session be this thread's active one for a moment."""
    sessions = SparkSession._get_j_spark_session_class(session._jvm)
    before = sessions.getActiveSession()
    sessions.setActiveSession(session._jsparkSession)
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()
