"""SSAM's plug: the factory of a node's interface with its kernel, and of the library above it."""

from __future__ import annotations

from protocols.core.firmware import Adapter, Agent, Nic, Plug
from protocols.core.host_work import host_work
from protocols.ssam.am_library import ActiveMessages
from protocols.ssam.counters import Counters
from protocols.ssam.sba100 import Sba100
from protocols.ssam.settings import Settings


def plug(settings: Settings | None = None) -> Plug:
    """Make SSAM's plug."""
    node_settings = settings if settings is not None else Settings()

    def build(adapter: Adapter, nic: Nic) -> Agent:
        device = Sba100(adapter, nic, host_work(nic), node_settings, Counters())
        return Agent(device, ActiveMessages(device.program, nic), has_input_fifo=True)

    return build
