"""MPI's device on AM-II."""

from __future__ import annotations

from protocols.am2.host.library import ActiveMessages
from protocols.mpi.am2.endpoint import Am2Endpoint
from protocols.mpi.device import Device


def device(host: ActiveMessages) -> Device:
    """Make the device for a node's communicators; one for each host library, before its other endpoints."""
    return Device(Am2Endpoint(host))
