"""Run the storm in a separate process: random traffic with verification over losses and flaps.

The argument is JSON; the result is a line of JSON.
"""

import json
import sys
from typing import Any

import testbed
from testbed import Cluster, Scenario
from testbed.errors import TestbedError
from testbed.spec.fault_models import Flap

_FLAPS = (("n2", 80, 80), ("n3", 120, 120))
"""Cables that are unplugged: node, then first time and period in ms per second of the storm."""


def storm(requested: dict[str, Any]) -> dict[str, Any]:
    seconds, nodes = requested["seconds"], requested["nodes"]
    flaps = tuple(
        Flap(on=node, from_=f"{round(first * seconds)}ms", for_="300ms", every=f"{max(1000, round(every * seconds))}ms")
        for node, first, every in _FLAPS
    )
    result = testbed.run(
        Cluster.star(nodes, loss=requested["loss"]), "random", protocol="emp", timeout=requested["timeout"], check=False,
        fates=requested["relay"], scenario=Scenario(name="storm", faults=flaps), seed=requested["seed"],
        settings={"messages": requested["messages"] // nodes, "over": f"{seconds}s", "largest": 2_000, "outstanding": 4},
        output=requested["output"],
    )  # fmt: skip
    return {
        "received": sum(row["received"] for row in result.results.values()),
        "sent": sum(row["sent"] for row in result.results.values()),
        "took": max(row["took_ns"] for row in result.rows) / 1e9,
        "grade": result.verdict.grade.value,
        "findings": [
            f"{finding.what} {finding.link} {finding.measured} {finding.reason}"
            for finding in result.verdict.findings
            if finding.grade.value in ("degraded", "invalid", "failed")
        ],
        "notes": list(result.verdict.notes),
    }


def main() -> int:
    try:
        print(json.dumps(storm(json.loads(sys.argv[1]))))
    except TestbedError as error:
        print("\n".join(str(error).splitlines()[:3]), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
