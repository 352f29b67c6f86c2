"""Faults of the model of a node in a dilated run."""

from __future__ import annotations

import time
from contextlib import closing
from typing import TYPE_CHECKING, cast

from testbed.runtime.nodes.dilated_host import DilatedHost
from testbed.runtime.nodes.run_orders import BeginLoad, EndLoad, ModelFault, PauseNic
from testbed.spec.model import Description
from testbed.spec.resolver import resolve
from tests.unit.nic.test_completions import PRICES, SilentPort

if TYPE_CHECKING:
    from testbed.kernel.frame_socket import FrameSocket


def busy_after(*faults: ModelFault) -> float:
    """Return for how many nanoseconds the cores and the NIC were busy 100 ms after these faults."""
    with closing(SilentPort()) as wire:
        host = DilatedHost(cast("FrameSocket", wire), resolve(Description.star(2)).nodes[0], PRICES, 1)
        host.start_clock(time.monotonic_ns(), is_restarted=False)
        for fault in faults:
            host.apply_fault(fault)
        host.loop.stop_at(100_000_000)
        host.loop.run()
        return sum(usage["busy_ns"] for usage in host.usage().values())


def test_the_end_of_a_load_that_began_before_a_restart_has_no_effect() -> None:
    assert busy_after(EndLoad(0.5)) == 0
    assert busy_after(EndLoad(0.5), BeginLoad(0.5)) > busy_after(BeginLoad(0.5), BeginLoad(0.25), EndLoad(0.5)) > 0


def test_overlapping_pauses_keep_the_cores_busy_once() -> None:
    assert 0 < busy_after(PauseNic(60_000_000), PauseNic(80_000_000)) <= 80_000_000
