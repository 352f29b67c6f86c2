"""EMP, as the entry point "emp" of the group "testbed.protocols" gives it."""

from __future__ import annotations

from typing import Final

from protocols.core.protocol import Protocol
from protocols.emp import codec
from protocols.emp.host import plug
from protocols.mpi.emp import device

PROTOCOL: Final = Protocol(plug(), codec.ETHERTYPE, device, codec.FIELDS, codec.FLOW)
