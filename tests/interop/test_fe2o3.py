"""fe2o3-amqp, the AMQP 1.0 client of Rust, against the broker under test.

Owns the build of the program (into the build folder, from the lock file) and one run per scenario. It is the one client
at hand that acquires messages in a transaction, and one of two that log in by SCRAM. The scenarios themselves are Rust,
in `rust/src/main.rs`; each gets an empty queue and prints "ok" or the reason.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from peers import start_weft

from .support import shared_queue

HERE = Path(__file__).parent / "rust"
BUILD = Path(__file__).parents[2] / "build" / "interop-rust"

pytestmark = [
    pytest.mark.weft_only,
    pytest.mark.peers,
    pytest.mark.timeout(300),
    pytest.mark.skipif("WEFT_TEST_RUST" not in os.environ, reason="120 crates to compile: set WEFT_TEST_RUST=1"),
]


@pytest.fixture(scope="session")
def program() -> Path:
    command = ["cargo", "build", "--quiet", "--locked", "--manifest-path", str(HERE / "Cargo.toml")]
    done = subprocess.run([*command, "--target-dir", str(BUILD)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return BUILD / "debug" / "scenarios"


@pytest.mark.parametrize("scenario", ["commit", "rollback"])
def test_transactions_that_acquire(
    broker: Any, channel: BlockingChannel, name: Callable[..., str], program: Path, scenario: str
) -> None:
    run(program, broker, scenario, shared_queue(channel, name()))


def test_scram(program: Path, tmp_path: Path) -> None:
    config = tmp_path / "weft.toml"
    config.write_text("[settings]\nscram = true\n")
    node = start_weft(tmp_path / "data", "--config", str(config))
    try:
        run(program, node, "scram", "proven")
    finally:
        node.stop()


def run(program: Path, broker: Any, scenario: str, queue: str) -> None:
    command = [str(program), f"{broker.host}:{broker.port}", scenario, queue]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.strip()) == (0, "ok"), done.stdout + done.stderr
