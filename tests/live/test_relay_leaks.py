"""Repeated changes do not leak memory or descriptors in a relay."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

import pytest

from testbed import Cluster
from tests.live.traffic import relay_pid

pytestmark = [pytest.mark.requires("root"), pytest.mark.usefixtures("machine")]

CHANGES = 10
SAMPLES = 3
WARM_UP = 6
SLACK = 200_000  # bytes; a leak of everything that a change allocates took 5 MB
RULE = "drop emp.type == 1 and first(2)"


def memory(pid: int) -> int:
    """Return the bytes of anonymous memory."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(("Anonymous:", "Swap:")))


def test_repeated_rules_and_datapath_changes_do_not_leak() -> None:
    with Cluster.star(20).up() as cluster, cluster.inject("n1", delay="1ms"):
        pid = relay_pid(cluster)

        def change() -> None:
            with cluster.inject("all", rules=[RULE]):
                pass

        for _ in range(WARM_UP):
            change()
        descriptors = len(os.listdir(f"/proc/{pid}/fd"))
        sizes = [memory(pid)]
        for _ in range(SAMPLES):
            for _ in range(CHANGES):
                change()
            sizes.append(memory(pid))
        assert relay_pid(cluster) == pid
        assert len(os.listdir(f"/proc/{pid}/fd")) == descriptors
    # A leak grows between all samples; the interpreter's heap grows only occasionally, between garbage collections.
    assert min(after - before for before, after in pairwise(sizes)) < SLACK, sizes
