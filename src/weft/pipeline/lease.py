"""One run at a time on a lake that is a URL: a lease, kept as an object beside the results.

Owns the object `running/<generation>.lease`, its renewal, and the judgement whether somebody else renews one. A session
and the lake's URL come in; the right to write there goes out, or one line that says who has it.
It must never compare clocks of two machines, and never take what is still renewed: a lease that was left behind is
watched until it would have been renewed. Files are reached as Spark's checkpoint is, through Hadoop's file systems,
where creating a file that is there already fails (HDFS; S3 by a conditional put).
Rule: docs/guides/pipeline.md, "Bronze, silver, gold".
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, Self, cast

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from weft.model.errors import ConfigError, Unavailable

RENEW_S = 5.0
WATCH_S = 20.0
"""How long a lease must stay as it is to count as left behind: several renewals."""
LOOK_S = 1.0
CONDITIONAL = "fs.option.create.conditional.overwrite"
"""Hadoop's word for S3's `If-None-Match`; other stores pass it by, as creating is atomic there."""
SUFFIX = ".lease"


class Lease:
    """The right to write into a lake: `with Lease(spark, url) as lease`; `lease.check()` before every step."""

    def __init__(self, spark: SparkSession, url: str, *, say: Callable[[str], None] = print) -> None:
        self._java = cast("Any", spark._jvm)
        self._folder = self._java.org.apache.hadoop.fs.Path(f"{url.rstrip('/')}/running")
        self._files = self._folder.getFileSystem(spark._jsc.hadoopConfiguration())
        self._url, self._say = url, say
        self._who = f"{socket.gethostname()}, process {os.getpid()}\n{secrets.token_hex(8)}"
        self._generation = self._renewals = 0
        self._lost = ""
        self._ended = threading.Event()

    def __enter__(self) -> Self:
        try:
            self._take()
        except Py4JJavaError as error:
            raise Unavailable(f"lake {self._url}: {_first_line(error)}") from None
        self._renewer = threading.Thread(target=self._renew, daemon=True)
        self._renewer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._renewer.join()
        if not self._lost:
            self._files.delete(self._path(self._generation), False)

    def check(self) -> None:
        """Raises when somebody else has taken over, which can only be after this run was stopped for a while."""
        if self._lost:
            raise Unavailable(self._lost)

    def _take(self) -> None:
        """Make the next generation. Of all who try, one succeeds."""
        known = self._newest()
        if known:
            self._watch(known)
        self._generation = known + 1
        text = self._text()
        try:
            self._write(self._path(self._generation), text, anew=True)
        except Py4JJavaError:
            other = self._read(self._generation)
            if other == text or self._generation not in self._generations():
                raise
            raise self._in_use(other) from None
        for generation in self._generations():
            if generation < self._generation:
                self._files.delete(self._path(generation), False)

    def _watch(self, generation: int) -> None:
        """Until it is sure that nobody renews this lease."""
        before = self._read(generation)
        self._say(f"the lake {self._url} has the lease of {_holder(before)}; looking whether it is still renewed")
        until = time.monotonic() + WATCH_S
        while time.monotonic() < until:
            time.sleep(LOOK_S)
            now = self._read(generation)
            if now is None:
                return
            if now != before:
                raise self._in_use(before or now)  # one of them may have been read while it was replaced

    def _in_use(self, text: str | None) -> ConfigError:
        who = _holder(text)
        return ConfigError(f"another run uses the lake {self._url} ({who}): wait for its end, or give another --lake")

    def _renew(self) -> None:
        while not self._ended.wait(RENEW_S):
            try:
                if self._newest() != self._generation:
                    self._lost = f"another run has taken over the lake {self._url}, since this one did not move"
                    return
                self._renewals += 1
                self._write(self._path(self._generation), self._text(), anew=False)
            except Py4JJavaError:
                continue  # a store that does not answer now is asked again; whoever takes over is seen then

    def _generations(self) -> list[int]:
        if not self._files.exists(self._folder):
            return []
        names = [status.getPath().getName() for status in self._files.listStatus(self._folder)]
        return [int(name.removesuffix(SUFFIX)) for name in names if name.endswith(SUFFIX)]

    def _newest(self) -> int:
        return max(self._generations(), default=0)

    def _path(self, generation: int) -> Any:
        return self._java.org.apache.hadoop.fs.Path(self._folder, f"{generation:012}{SUFFIX}")

    def _text(self) -> str:
        return f"{self._who}\n{self._renewals}\n"

    def _write(self, path: Any, text: str, *, anew: bool) -> None:
        making = self._files.createFile(path).overwrite(not anew).recursive()
        stream = (making.opt(CONDITIONAL, "true") if anew else making).build()
        stream.write(text.encode())
        stream.close()

    def _read(self, generation: int) -> str | None:
        """What a lease says; None if it is gone."""
        try:
            stream = self._files.open(self._path(generation))
            try:
                return str(self._java.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
            finally:
                stream.close()
        except Py4JJavaError as error:
            if "FileNotFoundException" in str(error.java_exception.getClass().getName()):
                return None
            raise


def _holder(text: str | None) -> str:
    return (text or "").partition("\n")[0] or "somebody"


def _first_line(error: Py4JJavaError) -> str:
    return str(error.java_exception.toString()).partition("\n")[0]
