"""Probes over TCP for messages of a peer that is gone."""

from __future__ import annotations

import pytest

from protocols.core.completion import Completion
from protocols.core.firmware import Adapter
from protocols.mpi.device import ProbeResult
from protocols.mpi.mpi_errors import ERR_PROC_FAILED, MPIError
from testbed.runtime.sockets.tcp import TcpEndpoint

ADDRESSES = [bytes(6)] * 2


def probed(endpoint: TcpEndpoint, wait: bool) -> ProbeResult | None:
    completion: Completion[ProbeResult | None] = Completion()
    assert endpoint.probe(1, 0, 7, wait, False, completion)
    return completion.result()


def test_a_probe_finds_what_a_peer_has_left_and_then_fails_instead_of_waiting() -> None:
    endpoint = TcpEndpoint(Adapter(0, ADDRESSES), None)  # type: ignore[arg-type]  # not connected with anybody
    assert probed(endpoint, wait=False) is None
    with pytest.raises(MPIError) as raised:
        probed(endpoint, wait=True)
    assert raised.value.Get_error_class() == ERR_PROC_FAILED
    endpoint.matching.complete(endpoint.matching.arrive(1, 0, 7, 0))
    found = probed(endpoint, wait=True)
    assert found is not None
    assert found.envelope == (1, 7, 0)
