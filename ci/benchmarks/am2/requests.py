"""Soak test of AM-II: random requests of all kinds on live Myrinet that loses 1 % of the frames on every cable. Each request
is handled once or returned. The programs verify sequence numbers and contents and keep no histories, since a history's
memory grows with the number of requests."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import testbed
from benchmarks.harness.contenders import ContenderError
from benchmarks.harness.rows import REPOSITORY, Row
from testbed.errors import TestbedError

REQUESTS = "requests"
SENT, REPLIED, RETURNED, WRONG, RESENT, RATE = (
    "sent", "handled once and replied to", "returned", "handled twice, lost, or ended otherwise", "packets resent", "ended",
)  # fmt: skip
CLUSTER = REPOSITORY / "ci" / "requests.toml"
NODES = 4
ROUTE_TIMEOUT = 60_000_000_000
"""Nanoseconds that messages wait for a route: on a busy machine, mapping a lossy network takes longer than the default."""
_MIN_RATE = 20  # requests per second and node that a busy machine reaches


def measure(requests: int, directory: Path) -> Iterator[Row]:
    """Measure random requests. requests: total over all nodes."""
    settings = {"requests": -(-requests // NODES)}
    timeout = 120 + settings["requests"] / _MIN_RATE
    try:
        result = testbed.run(
            CLUSTER, "am-random", protocol="am2", settings=settings, firmware={"detour": ROUTE_TIMEOUT}, check=False,
            timeout=timeout, output=directory / REQUESTS,
        )  # fmt: skip
    except TestbedError as error:
        raise ContenderError(str(error)) from error
    counts: Counter[str] = Counter()
    for row in result.rows:
        counts.update({name: value for name, value in row.items() if isinstance(value, int)})
    seconds = max(row["took_ns"] for row in result.rows) / 1e9
    sent = counts["sent"] - counts["sent_again"]
    if sent < requests:
        raise ContenderError(f"{sent} of {requests} requests were sent")
    ended = counts["replied"] + counts["returned"]
    # A returned request may have been handled: only its acknowledgements may have been lost.
    unexplained = max(0, counts["handled"] - counts["replied"] - counts["returned"])
    wrong = (
        abs(sent - ended)
        + unexplained
        + counts["handled_twice"]
        + counts["strange_replies"]
        + counts["strange_returns"]
    )
    parameters = {
        **settings, "detour": ROUTE_TIMEOUT, "cluster": CLUSTER.name, "grade": result.verdict.grade.value,
        "seconds": seconds,
        "findings": [str(finding) for finding in result.verdict.findings if finding.grade.value in ("degraded", "invalid")],
    }  # fmt: skip
    resent = sum(counters["packets_resent"] for counters in result.counters.values())
    for what, unit, value in (
        (SENT, "1", sent), (REPLIED, "1", counts["replied"]), (RETURNED, "1", counts["returned"]), (WRONG, "1", wrong),
        (RESENT, "1", resent), (RATE, "/s", ended / seconds),
    ):  # fmt: skip
        yield Row(REQUESTS, "AM-II, inline", what, NODES, unit, (float(value),), parameters)
