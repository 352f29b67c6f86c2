"""Probes over TCP for messages of a peer that has ended."""

from __future__ import annotations

import pytest

from protocols.core.completion import Completion
from protocols.core.firmware import Adapter
from protocols.mpi.device import ProbeResult
from protocols.mpi.mpi_errors import ERR_PROC_FAILED, MPIError
from testbed.runtime.sockets.tcp import TcpEndpoint

ADDRESSES = [bytes(6)] * 2


def probe_result(endpoint: TcpEndpoint, waits: bool) -> ProbeResult | None:
    completion: Completion[ProbeResult | None] = Completion()
    assert endpoint.probe(1, 0, 7, waits, False, completion)
    return completion.result()


def test_a_probe_finds_messages_of_an_ended_peer_and_fails_instead_of_waiting_for_more() -> None:
    endpoint = TcpEndpoint(Adapter(0, ADDRESSES), None)  # type: ignore[arg-type]  # not connected to any peer
    assert probe_result(endpoint, waits=False) is None
    with pytest.raises(MPIError) as raised:
        probe_result(endpoint, waits=True)
    assert raised.value.Get_error_class() == ERR_PROC_FAILED
    endpoint.matching.complete(endpoint.matching.arrive(1, 0, 7, 0))
    result = probe_result(endpoint, waits=True)
    assert result is not None
    assert result.envelope == (1, 7, 0)
