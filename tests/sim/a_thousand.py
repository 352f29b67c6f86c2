"""The largest simulation of the benchmark, in a process of its own: its memory is nobody else's.

Prints one JSON object: frames, seconds of processor time, and the most memory that the process had, in bytes. It ends with
an error where a message does not come once and as it was sent.
"""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "ci"))

from benchmarks.engine.firmware import LARGEST, simulate


def main() -> None:
    run = simulate(LARGEST[0])
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    json.dump({"nodes": run.nodes, "frames": run.rate * run.taken, "taken": run.taken, "memory": memory}, sys.stdout)


if __name__ == "__main__":
    main()
