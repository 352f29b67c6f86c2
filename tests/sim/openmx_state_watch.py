"""Watch Open-MX's state machines: steps of endpoints, pulls and partners, which the product takes from the tables, and
messages to open endpoints, which the driver and the table count independently."""

from __future__ import annotations

import pytest

from protocols.openmx import states
from protocols.openmx.codec import TYPE_CONNECT
from protocols.openmx.driver_endpoint import DriverEndpoint
from protocols.openmx.endpoint_memory import Event
from protocols.openmx.firmware import Firmware
from protocols.openmx.partners import Partner
from protocols.openmx.pulls import Pull, Pulls
from tests.sim.state_watch import Watch


def watch_endpoints(patch: pytest.MonkeyPatch, watch: Watch) -> None:
    """Count the steps of endpoints in drivers."""
    step, deliver = Firmware._step, Firmware._deliver

    def watched_step(firmware: Firmware, endpoint: DriverEndpoint, event: str) -> None:
        before = endpoint.state
        step(firmware, endpoint, event)
        watch.record(states.ENDPOINT, before, event, endpoint.state)

    def watched_deliver(
        firmware: Firmware, endpoint: DriverEndpoint, event: Event, data: bytes | memoryview = b""
    ) -> None:
        dropped = firmware.counters.unexp_eventq_full
        deliver(firmware, endpoint, event, data)
        if firmware.counters.unexp_eventq_full == dropped:
            kind = "connection request" if event.kind == TYPE_CONNECT else "message"
            watch.record(states.ENDPOINT, endpoint.state, kind, endpoint.state)

    patch.setattr(Firmware, "_step", watched_step)
    patch.setattr(Firmware, "_deliver", watched_deliver)


def watch_pulls(patch: pytest.MonkeyPatch, watch: Watch) -> None:
    """Count the steps of pulls."""
    step = Pulls._step

    def observed(pulls: Pulls, pull: Pull, event: str) -> None:
        before = pull.state
        step(pulls, pull, event)
        watch.record(states.PULL, before, event, pull.state)

    patch.setattr(Pulls, "_step", observed)


def watch_partners(patch: pytest.MonkeyPatch, watch: Watch) -> None:
    """Count the steps of partners in libraries."""
    step = Partner._step

    def observed(partner: Partner, event: str) -> None:
        before = partner.state
        step(partner, event)
        watch.record(states.PARTNER, before, event, partner.state)

    patch.setattr(Partner, "_step", observed)
