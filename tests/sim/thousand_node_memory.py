"""The largest simulation of the benchmark, in a process of its own: its memory is nobody else's.

Prints one JSON object: frames, seconds of processor time, and the most memory that the process had, in bytes. It ends with
an error where a message does not come once and as it was sent.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from benchmarks.engine.firmware import LARGEST, simulate


def main() -> None:
    run = simulate(LARGEST[0])
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    memory = int(status["VmHWM"].split()[0]) * 1024  # getrusage counts what the process was before its program, too
    json.dump({"nodes": run.nodes, "frames": run.rate * run.taken, "taken": run.taken, "memory": memory}, sys.stdout)


if __name__ == "__main__":
    main()
