"""Watch Open-MX's state machines: steps of endpoints, pulls and partners, which the product takes from the tables, and
messages to open endpoints, which the driver and the table count independently."""

from __future__ import annotations

import pytest

from protocols.core.firmware import Buffer
from protocols.openmx import states
from protocols.openmx.codec import TYPE_CONNECT
from protocols.openmx.driver_endpoint import Driver, DriverEndpoint
from protocols.openmx.endpoint_memory import Event
from protocols.openmx.partners import Partner
from protocols.openmx.pulls import Pull, Pulls
from tests.sim.state_watch import Watch


def watch_endpoints(patch: pytest.MonkeyPatch, watch: Watch) -> None:
    """Count the steps of endpoints in drivers."""
    step, deliver = Driver.step, Driver.deliver

    def watched_step(driver: Driver, endpoint: DriverEndpoint, event: str) -> None:
        before = endpoint.state
        step(driver, endpoint, event)
        watch.record(states.ENDPOINT, before, event, endpoint.state)

    def watched_deliver(driver: Driver, by: Driver, endpoint: DriverEndpoint, event: Event, data: Buffer = b"") -> None:
        dropped = driver.counters.unexp_eventq_full
        deliver(driver, by, endpoint, event, data)
        if driver.counters.unexp_eventq_full == dropped:
            kind = "connection request" if event.kind == TYPE_CONNECT else "message"
            watch.record(states.ENDPOINT, endpoint.state, kind, endpoint.state)

    patch.setattr(Driver, "step", watched_step)
    patch.setattr(Driver, "deliver", watched_deliver)


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
