"""HDFS without Hadoop's native library: a cluster's web interface (WebHDFS) as a file system of pyarrow.

Owns the way from a URL to a file system that the lake and the pipeline's store can use:
`webhdfs://user@namenode:9870/lake`, or `hdfs://namenode:8020/lake` where Hadoop's library is not there. fsspec speaks
to the cluster.
It must never take a move for done that was not: the name node is asked to replace what is there, or fails.
Kerberos, and what else only Hadoop's own client can do, is had by its library (docs/guides/pipeline.md).
"""

from __future__ import annotations

import getpass
import os
from urllib.parse import unquote, urlsplit

from pyarrow import fs

from weft.model.errors import ConfigError

SCHEMES = ("webhdfs", "swebhdfs")
PORT = 9870
ADDRESS = "WEFT_WEBHDFS"
"""Variable of the environment with the web interface's `host:port` for `hdfs://`; else the name node's usual one."""


class _Handler(fs.FSSpecHandler):  # type: ignore[misc] # pyarrow has no types
    def move(self, src: str, dest: str) -> None:
        # The plain question answers "no" where the target is there, and fsspec does not look at the answer.
        self.fs._call("RENAME", method="put", path=src, destination=dest, renameoptions="OVERWRITE")


def web_hdfs(url: str) -> tuple[fs.FileSystem, str]:
    """The file system of a WebHDFS URL, and the path in it."""
    try:
        from fsspec.implementations.webhdfs import WebHDFS
    except ImportError as error:
        raise ConfigError(f"HDFS by its web interface needs fsspec: pip install 'weft[hdfs]' ({error})") from None
    parts = urlsplit(url)
    try:
        place = parts if parts.scheme in SCHEMES else urlsplit(f"//{os.environ.get(ADDRESS) or parts.hostname}")
        host, port = place.hostname, place.port or PORT
    except ValueError as error:
        raise ConfigError(f"{url}: {error}") from None
    if not host:
        raise ConfigError(f"{url} names no host: webhdfs://namenode:{PORT}/folder")
    user = unquote(parts.username or "") or os.environ.get("HADOOP_USER_NAME") or getpass.getuser()
    cluster = WebHDFS(host, port=port, user=user, use_https=parts.scheme == SCHEMES[1])
    return fs.PyFileSystem(_Handler(cluster)), unquote(parts.path).rstrip("/")
