"""The largest simulation of the benchmark, in a separate process whose memory can be measured.

Prints one JSON object: frames, seconds of processor time, and peak memory of the process in bytes. It fails if a
message does not arrive exactly once and unchanged.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from benchmarks.engine.firmware import LARGEST, simulate


def main() -> None:
    run = simulate(LARGEST[0])
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    memory = int(status["VmHWM"].split()[0]) * 1024  # getrusage includes the process before exec
    json.dump(
        {"nodes": run.nodes, "frames": run.rate * run.seconds, "seconds": run.seconds, "memory": memory}, sys.stdout
    )


if __name__ == "__main__":
    main()
