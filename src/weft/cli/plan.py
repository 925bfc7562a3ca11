"""`weft plan`: how safe several paths are, and how large a network may grow.

Owns the tables on a terminal: the talk's P_loss^n, the paths of a fabric file with what they share, and the network of
10,000 servers on paper.
It must never ask a running node: it plans.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from weft.fabric import load
from weft.fabric.model import Paper
from weft.fabric.paths import TABLE, estimate, find_paths, loss_of, paths_needed
from weft.fabric.rehearsal import HOP_MS, rehearse
from weft.model.errors import ConfigError

SERVERS_MAX = 20_000
"""What can be rehearsed within a few seconds: twice the talk's network."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("file", metavar="FILE", nargs="?", help="a fabric file; without one, the table of the talk")
    parser.add_argument("--from", dest="start", metavar="NODE")
    parser.add_argument("--to", dest="end", metavar="NODE")
    parser.add_argument("--uptime", type=float, default=0.99, help="of one path (default: 0.99)")
    parser.add_argument("--target", type=float, help="say how many independent paths reach this uptime")
    parser.add_argument("--servers", type=int, help="the talk's network on paper with so many servers")


def run(options: argparse.Namespace) -> int:
    """Print what was asked for."""
    if not 0 < options.uptime < 1:
        raise ConfigError("--uptime is a share between 0 and 1, such as 0.99")
    if options.target is not None and not 0 < options.target < 1:
        raise ConfigError("--target is a share between 0 and 1, such as 0.9999: no number of paths is certain")
    if options.servers is not None:
        _paper(options.servers)
    elif options.target is not None:
        count = paths_needed(options.uptime, options.target)
        enough = f"{_paths_of(count)} of" if count else "not even 64 paths of"
        reach = "reaches" if count == 1 else "reach"
        print(f"{enough} {_percent(options.uptime)} {reach} {_percent(options.target)}, if independent")
    elif options.file is None:
        _table()
    else:
        _paths(options)
    return 0


def _paths_of(count: int) -> str:
    return "1 path" if count == 1 else f"{count} paths"


def _percent(share: float) -> str:
    return f"{share * 100:.10f}".rstrip("0").rstrip(".") + "%"


def _table() -> None:
    print("uptime   P_loss  n  P_failure    overall uptime")
    for uptime, count in TABLE:
        loss = loss_of(uptime, count)
        print(f"{_percent(uptime):<8} {1 - uptime:<7.3g} {count}  {loss:<12.3g} {_percent(1 - loss)}")
    print("(if the paths share nothing: `weft plan FILE --from A --to B` shows what they share)")


def _paths(options: argparse.Namespace) -> None:
    fabric = load(Path(options.file))
    for name in (options.start, options.end):
        if name not in fabric.members:
            raise ConfigError(f"--from and --to must name nodes of the file: {', '.join(fabric.members)}")
    if options.start == options.end:
        raise ConfigError("--from and --to name the same node")
    paths = find_paths(fabric, options.start, options.end)
    if not paths:
        print(f"there is no path from {options.start} to {options.end}")
        return
    for path in paths:
        print(" -> ".join(path))
    found = estimate(fabric, paths)
    print(f"\n{_paths_of(len(paths))}; all of them need: {', '.join(found.shared) or 'nothing in common'}")
    if found.shared:
        print("They are not independent: what they share fails for all of them at once.")
    print(f"if they were independent: loss {found.naive_loss:.3g}, uptime {_percent(1 - found.naive_loss)}")
    print(f"with what they share:     loss {found.loss:.3g}, uptime {_percent(1 - found.loss)}")


def _paper(servers: int) -> None:
    if not 1 <= servers <= SERVERS_MAX:
        raise ConfigError(f"--servers is a number from 1 to {SERVERS_MAX}")
    paper = Paper(servers=servers)
    print(f"{servers} servers in {paper.regions} regions, {paper.gateways_per_region} gateways per region,")
    print(f"each server's node linked to {paper.uplinks} gateways, {paper.processes_per_server} processes per server:")
    for kind, count in paper.connections().items():
        print(f"  connections at a {kind} node, at most: {count}")
    print(f"  links between nodes in all: {paper.links()} ({paper.links() / servers:.2f} per server)")
    hops, seconds = paper.convergence_hops(), paper.convergence_s()
    print(f"  a change is known everywhere after {hops} hops, about {seconds:.2f} s at 50 ms each")
    done = rehearse(paper)
    print(f"rehearsed with {done.nodes} directories and {done.links} links of {HOP_MS[0]:.0f} to {HOP_MS[1]:.0f} ms:")
    print(f"  connections at the busiest node: {done.connections_max}")
    print(f"  half of the nodes know a change after {done.half_ms:.0f} ms, all of them after {done.known_ms:.0f} ms")
    share = done.messages / done.nodes
    print(f"  that costs {share:.1f} messages per node, {done.messages_max} at the busiest: one per neighbour at most")
