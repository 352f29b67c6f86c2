"""NICs ignore frames for other nodes, which a switch floods until it has learnt the destination's address."""

from __future__ import annotations

import pytest

import testbed
from testbed import Cluster
from testbed.workloads.form import Comm, Node


@pytest.mark.parametrize("protocol", ["emp", "am2", "via", "openmx"])
def test_flooded_frames_have_no_effect_at_other_nodes(protocol: str) -> None:
    """In the first barrier every node sends its first frames to others, before any switch has learnt an address."""

    async def barriers(comm: Comm, _node: Node) -> int:
        for _ in range(3):
            await comm.Barrier()
        return comm.rank

    cluster = Cluster.star(7, delay="5us", rate="1gbit")
    result = testbed.run(cluster, barriers, protocol=protocol, mode="sim", timeout=10)
    assert sorted(result.results.values()) == list(range(7))
