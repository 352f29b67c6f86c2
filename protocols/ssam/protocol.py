"""SSAM's description for the testbed: the entry point "ssam" in the group "testbed.protocols"."""

from __future__ import annotations

from typing import Final

from protocols.atm.fields import ETHERTYPE
from protocols.core.protocol import Configurable, Protocol
from protocols.mpi.ssam import device
from protocols.ssam.host import DISPATCH, FORMAT
from protocols.ssam.plug import plug
from protocols.ssam.profile import SPARCSTATION_1, SPARCSTATION_20
from protocols.ssam.sba100 import KINDS
from protocols.ssam.settings import Settings

PROTOCOL: Final = Protocol(
    plug(), ETHERTYPE, device, profiles=(SPARCSTATION_20, SPARCSTATION_1), framings=("cells",),
    configurable=Configurable(Settings, plug), active_messages=True, host_work=(*KINDS, FORMAT, DISPATCH),
    needs_order=True,
)  # fmt: skip
