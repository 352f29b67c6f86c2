"""SSAM's entry point "ssam" in the group "testbed.protocols"."""

from __future__ import annotations

from typing import Final

from protocols.atm.fields import ETHERTYPE
from protocols.core.protocol import Configurable, Protocol
from protocols.mpi.ssam import device
from protocols.ssam.plug import plug
from protocols.ssam.settings import Settings

PROTOCOL: Final = Protocol(
    plug(), ETHERTYPE, device, framings=("cells",), configurable=Configurable(Settings, plug), active_messages=True
)
