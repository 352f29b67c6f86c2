"""MPI's device on VIA: the design of Bertozzi, Panella, Reggiani, "Design of a VIA based communication protocol for
LAM/MPI Suite"."""

from __future__ import annotations

from protocols.mpi.device import Device
from protocols.mpi.via.endpoint import ViaEndpoint
from protocols.via.host import ViaNic


def device(host: ViaNic) -> Device:
    """Make the device for a node's communicators; one for each host library."""
    return Device(ViaEndpoint(host))
