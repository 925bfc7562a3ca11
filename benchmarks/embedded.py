"""A small program without a network: it keeps what it sends in its spool. How large is it?

Owns one run: so many messages of 1 KiB are kept, one at a time, and the rate and the resident memory go out as one line
of JSON. It must never import more than such a program would: what is measured is the process.
Rule: as after `pip install --no-deps weft`, so without uvloop; docs/guides/client.md, "Store and forward".
"""

import sys
import tempfile
import time

sys.modules["uvloop"] = None  # type: ignore[assignment] # as if it were not installed

from weft.client.sync import connect  # noqa: E402 - only now

COUNT = int(sys.argv[1])

with tempfile.TemporaryDirectory() as folder, connect("amqp://127.0.0.1:1", spool=folder, timeout_s=0.1) as fabric:
    before = time.perf_counter()
    for _ in range(COUNT):
        fabric.send("bench", b"x" * 1024)
    rate = COUNT / (time.perf_counter() - before)
    with open("/proc/self/status", encoding="ascii") as status:
        resident_kb = next(int(line.split()[1]) for line in status if line.startswith("VmRSS:"))
print(f'{{"rate": {rate}, "resident_mb": {resident_kb / 1000}}}')
