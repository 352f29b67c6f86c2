"""EMP, as the entry point "emp" of the group "testbed.protocols" gives it."""

from __future__ import annotations

from typing import Final

from protocols.core.protocol import Protocol
from protocols.emp.codec import ETHERTYPE
from protocols.emp.host import plug
from protocols.mpi.emp import device

PROTOCOL: Final = Protocol(plug(), ETHERTYPE, device)
