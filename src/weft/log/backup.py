"""A node's data folder copied while the node goes on writing it.

Owns the order in which files are copied, which makes the copy what a crash at one moment would have left: what was
confirmed before the copy began is in it, and of what came meanwhile a beginning. A folder comes in, another one goes
out, whole or not at all.
It must never write into a data folder, nor ask its node.
Rule: docs/internals/segment.md; what leaves a segment is said again in a newer one first, so that oldest to newest
nothing is missed, and a segment with a newer one behind it changes no more.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from weft.log import DEFINITIONS, MESSAGES
from weft.model.errors import ConfigError, Unavailable
from weft.store.snapshot import copy_definitions

SEGMENTS = "segments"
PIECE_BYTES = 1 << 16
"""Read in less time than any disk needs for a sync."""


@dataclass(frozen=True, slots=True)
class Backup:
    """What was copied."""

    segments: int
    bytes: int


def back_up(data_dir: Path, target: Path) -> Backup:
    """Make `target` a data folder that holds what `data_dir` does."""
    if not (data_dir / DEFINITIONS).is_file():
        raise Unavailable(f"there is no node's data in {data_dir}")
    if target.exists() or target.is_symlink():
        raise ConfigError(f"{target} is there already; name a folder that is not")
    try:
        draft = Path(tempfile.mkdtemp(prefix=f"{target.name}.part-", dir=target.absolute().parent))
        try:
            backup = _copy_segments(data_dir / MESSAGES / SEGMENTS, draft / MESSAGES / SEGMENTS)
            # After the messages: of a queue that was deleted meanwhile they go, and none comes without its queue.
            copy_definitions(data_dir / DEFINITIONS, draft / DEFINITIONS)
            _sync(draft)
            draft.rename(target)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        _sync_one(target.absolute().parent)
    except OSError as error:
        raise Unavailable(f"cannot copy {data_dir} to {target}: {(error.strerror or str(error)).lower()}") from error
    return backup


def _copy_segments(source: Path, target: Path) -> Backup:
    target.mkdir(parents=True)
    first = 0
    while True:
        numbers = _numbers(source, first)
        for number in numbers:
            _copy_segment(source / f"{number:08}.log", target, is_open=number == numbers[-1])
        if _numbers(source, first)[-1:] == numbers[-1:]:
            break
        first = numbers[-1] if numbers else 0  # it was open when it was copied
    logs = [target / f"{number:08}.log" for number in _numbers(target, 0)]
    return Backup(len(logs), sum(log.stat().st_size for log in logs))


def _numbers(folder: Path, first: int) -> list[int]:
    found = [re.fullmatch(r"(\d{8,})\.log", name) for name in (os.listdir(folder) if folder.is_dir() else ())]
    return sorted(number for match in found if match and (number := int(match[1])) >= first)


def _copy_segment(log: Path, target: Path, *, is_open: bool) -> None:
    copy, sidecar = target / log.name, log.with_suffix(".idx")
    try:
        with log.open("rb") as source, copy.open("wb") as sink:
            (_copy_backwards if is_open else shutil.copyfileobj)(source, sink)
            is_whole = os.path.samestat(os.fstat(source.fileno()), log.stat())
        with suppress(FileNotFoundError):
            shutil.copyfile(sidecar, target / sidecar.name)
    except FileNotFoundError:
        is_whole = False
    if not is_whole:  # it was removed, and its blocks may be another segment's by now
        copy.unlink(missing_ok=True)
        (target / sidecar.name).unlink(missing_ok=True)


def _copy_backwards(source: BinaryIO, sink: BinaryIO) -> None:
    """The end first: a batch that is in the copy has all before it there, since those had been written before."""
    size = os.fstat(source.fileno()).st_size
    sink.truncate(size)
    for start in reversed(range(0, size, PIECE_BYTES)):
        os.pwrite(sink.fileno(), os.pread(source.fileno(), PIECE_BYTES, start), start)


def _sync(folder: Path) -> None:
    for path, _folders, names in os.walk(folder):
        for name in (*names, "."):
            _sync_one(Path(path, name))


def _sync_one(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
