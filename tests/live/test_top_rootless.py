"""Snapshots of an ordinary user's clusters, whose counters are in a user namespace."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from testbed import Cluster
from testbed.cluster.records.state import Store
from testbed.kernel import userns
from testbed.observe.live.snapshot import Absent, Snapshot
from testbed.observe.live.snapshots import SnapshotSampler
from tests.live.ordinary_user import as_user, wait_for_success

pytestmark = [pytest.mark.requires("root", "userns", "ping"), pytest.mark.usefixtures("machine")]


@pytest.mark.parametrize("lasting", [True, False])
def test_an_ordinary_user_sees_frames_drops_and_programs(home: Path, lasting: bool) -> None:
    def body() -> None:
        descriptors = set(os.listdir("/proc/self/fd"))
        sampler = SnapshotSampler(Store(), "pair")
        with Cluster.back_to_back(loss="100%", delay="1ms").up("pair", keep=lasting) as cluster:
            before = sampler.sample()
            assert isinstance(before, Snapshot)
            ping = cluster["n1"].popen(["ping", "-q", "-c20", "-i0.01", "-W1", "n2"])
            during = sampler.sample()
            assert isinstance(during, Snapshot)
            assert [program.name for program in during.nodes[0].programs] == ["ping"]
            ping.wait()
            after = sampler.sample()
            assert isinstance(after, Snapshot)
            assert after.links[0].forward.dropped["loss"] >= 1
            assert after.links[0].forward.frames >= after.links[0].forward.dropped["loss"]
            assert not userns.is_root()
        after_down = sampler.sample()
        assert after_down == Absent("pair has been taken down")
        sampler.close()
        assert set(os.listdir("/proc/self/fd")) == descriptors

    wait_for_success(as_user(home, body))
