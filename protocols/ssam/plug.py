"""The factory of SSAM's nodes: an interface with its kernel, and the library above it."""

from __future__ import annotations

from protocols.core.firmware import Adapter, Agent, Nic, Plug
from protocols.core.host_work import host_work
from protocols.ssam.am_library import ActiveMessages
from protocols.ssam.counters import Counters
from protocols.ssam.sba100 import Sba100
from protocols.ssam.settings import Settings


def plug(settings: Settings | None = None) -> Plug:
    """Make SSAM's plug."""
    config = settings if settings is not None else Settings()

    def build(adapter: Adapter, nic: Nic) -> Agent:
        device = Sba100(adapter, nic, host_work(nic), config, Counters())
        return Agent(device, ActiveMessages(device.program, nic), has_input_fifo=True)

    return build
