"""`make sim-fabric`: worlds until time is up, or the one of a seed.

Owns the command only. Prints what each world was like; a broken promise ends it with the seed to repeat it.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import time

from simulation.fabric import Failed, World
from simulation.mortal import Mortal
from simulation.shapes import SHAPES

SECONDS = 10.0


def main() -> int:
    """Run worlds; 1 if one broke a promise."""
    parser = argparse.ArgumentParser(prog="make sim-fabric", description=__doc__)
    parser.add_argument("--seed", type=int, help="repeat this world; without it, new ones until time is up")
    parser.add_argument("--nodes", type=int, help="how many, from 2 to 100; 5 to 20 by chance without it")
    parser.add_argument("--shape", choices=SHAPES, help="by chance without it")
    parser.add_argument("--deaths", type=int, choices=(0, 1), help="do nodes die? by chance without it")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="how long new worlds are begun (%(default)g)")
    options = parser.parse_args()
    logging.getLogger("weft").setLevel(logging.ERROR)  # links that go and come are what a world is made of
    end = time.monotonic() + options.seconds
    while True:
        seed = random.SystemRandom().getrandbits(32) if options.seed is None else options.seed
        chance = random.Random(seed)
        shape, nodes = options.shape or chance.choice(SHAPES), options.nodes or chance.randint(5, 20)
        dies = chance.random() < 0.5 if options.deaths is None else options.deaths == 1
        try:
            print((Mortal if dies else World)(seed, shape, nodes).run(), flush=True)
        except Failed as failed:
            print(failed, file=sys.stderr)
            return 1
        if options.seed is not None or time.monotonic() > end:
            return 0


sys.exit(main())
