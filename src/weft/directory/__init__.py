"""Who is where: the directory of a fabric, kept by its nodes or by ZooKeeper.

Owns one interface (`base`) and its two homes. Names and tables come in, entries and what happens to them go out.
It must never know a controller: what entries mean is decided by whoever reads them.
`open_directory` chooses by url: `embedded:` (the default) or `zookeeper://host:port[,host:port…]/root`.
"""

from weft.directory.base import Difference, Directory, Entry, Value, Watch, Watcher
from weft.directory.embedded import Embedded, Keeper
from weft.model.errors import ConfigError

__all__ = ["Difference", "Directory", "Embedded", "Entry", "Value", "Watch", "Watcher", "open_directory"]


def open_directory(url: str, node: str, keeper: Keeper | None = None) -> Directory:
    """The directory a url names; start it before use."""
    if url in ("", "embedded:"):
        return Embedded(node, keeper)
    scheme, _, rest = url.partition("://")
    if scheme != "zookeeper" or not rest:
        raise ConfigError(f"{url!r} is no directory: write embedded: or zookeeper://host:port/root")
    hosts, _, root = rest.partition("/")
    try:
        from weft.directory.zookeeper import ZooKeeper
    except ImportError:
        raise ConfigError("a directory in ZooKeeper needs kazoo: pip install 'weft[zookeeper]'") from None
    return ZooKeeper(hosts, f"/{root or 'weft'}")
