"""`weft fabric`: a whole fabric from one file: what differs, make it so, or run it here.

Owns the words of this command: `plan` asks every node and prints the difference, `apply` carries it out, `up` starts
the nodes of the file as processes of this machine first.
It must never drop a queue that holds messages unless `--force` says so.
Rule: docs/reference/fabric.md; `weft.fabric.diff` decides what is to be done.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from weft.cli.pruning import TIMEOUT_S, remove, until_flowing
from weft.client import connect
from weft.client.management import Management
from weft.fabric import Fabric, Member, load
from weft.fabric.diff import CLASSES, TOPOLOGY, Step, compare, compare_place
from weft.model.errors import Refused, Unavailable

NO_SUCH_CLASS = 404
START_TIMEOUT_S = 30.0
FINGERPRINT_CHARS = 12
AT_ONCE_MAX = 16
Plan = list[tuple[Member, list[Step]]]


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("word", choices=("plan", "apply", "up"), help="show what differs, make it so, or run it here")
    parser.add_argument("file", metavar="FILE", help="the fabric, in TOML or YAML (docs/reference/fabric.md)")
    parser.add_argument("--prune", action="store_true", help="remove what the file does not name")
    parser.add_argument("--force", action="store_true", help="with --prune: even queues that hold messages")
    parser.add_argument("--plan", metavar="PLAN", default="", help="apply: only what `plan` has printed as this plan")
    parser.add_argument("--data-dir", metavar="DIR", default="weft-fabric", help="up: folder of all nodes' folders")


def run(options: argparse.Namespace) -> int:
    """Do as the word says."""
    fabric = load(Path(options.file))
    if options.word == "up":
        return _up(fabric, options)
    carry_out = options.word == "apply"
    return asyncio.run(reconcile(fabric, options.prune, options.force, carry_out=carry_out, agreed=options.plan))


async def reconcile(fabric: Fabric, prune: bool, force: bool, *, carry_out: bool, agreed: str = "") -> int:
    """Compare every node with the file, and with `carry_out` make it so; the exit code.

    All nodes are asked before the first is changed. What is to go, goes last, when what comes in its place carries: a
    fabric changes its shape under traffic. With `agreed` only that plan is carried out, and no other.
    """
    plan, code = await _ask_all(fabric, prune, force)
    known_as = _fingerprint(plan)
    if not carry_out:
        print(f"plan {known_as}")
        return code
    if agreed and agreed != known_as:
        print(
            f"this is plan {known_as}, not {agreed}: the file or a node has changed. Nothing was done", file=sys.stderr
        )
        return 1
    for member, steps in plan:
        code |= await _carry_out_at(member, steps)
    surplus = [(member, step) for member, steps in plan for step in steps if step.action == "remove"]
    if surplus:
        made = [(m, step.name) for m, steps in plan for step in steps if step.kind == "route" and step.values]
        if not force and not await until_flowing(made):
            print(
                "some of the new routes do not carry yet: nothing was removed. Apply again to remove", file=sys.stderr
            )
            return 1
        code |= await remove(fabric, surplus, force=force)
    return code


async def _ask_all(fabric: Fabric, prune: bool, force: bool) -> tuple[Plan, int]:
    """What is to be done at each node, told as it is found out; 1 if one could not be asked. Several are asked at once,
    so that it does not take longer with each that is away.
    """
    plan: Plan = []
    code = 0
    gate = asyncio.Semaphore(AT_ONCE_MAX)
    ours = [member for member in fabric.members.values() if not member.is_foreign]
    asked = {member.name: asyncio.create_task(_ask(member, prune, force, gate)) for member in ours}
    for member in fabric.members.values():
        if member.is_foreign:
            print(f"{member.name} ({member.url}): another broker, left as it is")
            continue
        try:
            steps = await asked[member.name]
        except (Unavailable, Refused) as error:
            print(f"{member.name}: {error}", file=sys.stderr)
            code = 1
        else:
            _tell(member, steps)
            plan.append((member, steps))
    return plan, code


async def _ask(member: Member, prune: bool, force: bool, gate: asyncio.Semaphore) -> list[Step]:
    async with gate, connect(member.url, timeout_s=TIMEOUT_S, patient=False) as client:
        management = Management(client, timeout_s=TIMEOUT_S)
        actual = {kind: await _objects(management, kind) for kind in CLASSES}
        known = await management.find("directory", f"{TOPOLOGY}/{member.name}")
    return compare(member, actual, prune=prune, force=force) + compare_place(member, known)


def _fingerprint(plan: Plan) -> str:
    """A plan in a word: the same steps at the same nodes have the same."""
    steps = [[member.name, step.action, step.kind, step.name, step.values] for member, steps in plan for step in steps]
    return hashlib.sha256(json.dumps(steps, sort_keys=True, default=str).encode()).hexdigest()[:FINGERPRINT_CHARS]


async def _carry_out_at(member: Member, steps: list[Step]) -> int:
    if not any(step.action in ("make", "change") for step in steps):
        return 0
    try:
        async with connect(member.url, timeout_s=TIMEOUT_S) as client:
            management = Management(client, timeout_s=TIMEOUT_S)
            for step in steps:
                await _carry_out(management, step)
    except (Unavailable, Refused) as error:
        print(f"{member.name}: {error}", file=sys.stderr)
        return 1
    return 0


async def _objects(management: Management, kind: str) -> list[dict[str, Any]]:
    """Objects of a class. A node of an older version may not know it, and then has none of them."""
    try:
        return await management.query(kind)
    except Refused as error:
        if error.code == NO_SUCH_CLASS:
            return []
        raise


def _tell(member: Member, steps: list[Step]) -> None:
    print(f"{member.name} ({member.url}): " + ("as the file wants it" if not steps else ""))
    for step in steps:
        print(f"    {step}")


async def _carry_out(management: Management, step: Step) -> None:
    match step.action:
        case "make":
            await management.create(step.kind, "" if step.kind == "binding" else step.name, step.values)
        case "change":
            await management.update(step.kind, step.name, step.values)


def _up(fabric: Fabric, options: argparse.Namespace) -> int:
    folder = Path(options.data_dir)
    with ExitStack() as life:
        members = [member for member in fabric.members.values() if not member.is_foreign]
        processes = [start(member, folder / member.name) for member in members]
        for process in processes:
            life.callback(_end, process)
        for process, member in zip(processes, members, strict=True):
            await_ready(process, member.name)
        asyncio.run(reconcile(fabric, options.prune, options.force, carry_out=True))
        print(f"fabric {fabric.name} is up: {len(processes)} nodes; ctrl-c ends it", flush=True)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        try:
            signal.pause()
        except KeyboardInterrupt:
            print("ending")
    return 0


def start(member: Member, folder: Path) -> subprocess.Popen[str]:
    """A node of the file as a process."""
    command = [sys.executable, "-m", "weft", "up", "--name", member.name, "--listen", str(member.listen)]
    command += ["--data-dir", str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: S603 - this very program


def await_ready(process: subprocess.Popen[Any], name: str) -> None:
    """Wait until a node says that it is ready."""
    for line in process.stdout or ():
        if line.startswith("ready"):
            return
    raise Unavailable(f"node {name} did not start (exit code {process.wait(START_TIMEOUT_S)})")


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(START_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()
