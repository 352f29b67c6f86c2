"""Soak test of SSAM: random requests on live ATM that loses 1 % of the cells on every link. Each request is handled once and
answered once. The programs verify sequence numbers and contents and keep no histories, since a history's memory grows with
the number of requests."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import testbed
from benchmarks.harness.contenders import ContenderError
from benchmarks.harness.rows import Row
from testbed import Cluster
from testbed.errors import TestbedError

REQUESTS = "requests"
SENT, ANSWERED, WRONG, RESENT, RATE = (
    "sent", "handled once and answered once", "handled twice, not answered, or returned", "sent again", "answered",
)  # fmt: skip
CONTENDER = "SSAM, inline"
NODES = 4
LARGEST = 20
"""Bytes of data: a message of one cell."""
_MIN_RATE = 20  # requests per second and node that a busy machine reaches


def measure(requests: int, directory: Path) -> Iterator[Row]:
    """Measure random requests. requests: total over all nodes."""
    settings = {"requests": -(-requests // NODES), "endpoints": 1, "largest": LARGEST}
    cluster = Cluster.star(NODES, kind="atm", loss="1%")
    try:
        result = testbed.run(
            cluster, "am-random", protocol="ssam", settings=settings, check=False,
            timeout=120 + settings["requests"] / _MIN_RATE, output=directory / REQUESTS,
        )  # fmt: skip
    except TestbedError as error:
        raise ContenderError(str(error)) from error
    counts: Counter[str] = Counter()
    for node in result.results.values():
        counts.update(node)
    if counts["sent"] < requests:
        raise ContenderError(f"{counts['sent']} of {requests} requests were sent")
    seconds = max(row["took_ns"] for row in result.rows) / 1e9
    wrong = (
        abs(counts["sent"] - counts["replied"])
        + abs(counts["handled"] - counts["replied"] - counts["returned"])
        + counts["handled_twice"]
        + counts["returned"]
    )
    resent = sum(counters["resent"] + counters["hurried"] for counters in result.counters.values())
    row_settings = {
        **settings, "loss": "1%", "grade": result.verdict.grade.value, "seconds": seconds,
        "findings": [str(finding) for finding in result.verdict.findings if finding.grade.value in ("degraded", "invalid")],
    }  # fmt: skip
    for what, unit, value in (
        (SENT, "1", counts["sent"]), (ANSWERED, "1", counts["replied"]), (WRONG, "1", wrong), (RESENT, "1", resent),
        (RATE, "/s", counts["replied"] / seconds),
    ):  # fmt: skip
        yield Row(REQUESTS, CONTENDER, what, NODES, unit, (float(value),), row_settings)
