"""HTTP between two nodes: the duration of a request follows from the link's delay and loss."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed import RunningCluster, RunningNode
from tests.live.applications.servers import server

pytestmark = [pytest.mark.requires("root", "curl"), pytest.mark.usefixtures("machine")]

PAGE = "a page of " + "many " * 2000 + "words"
PORT = 8000


def seconds(client: RunningNode, url: str) -> float:
    """Return the duration of a request for the page, with connection set-up."""
    response = client.run(["curl", "-sS", "-w", "\n%{time_total}", url], timeout=60).stdout
    page, _, duration = response.rpartition("\n")
    assert page == PAGE
    return float(duration)


@pytest.mark.cluster("star-2", mode="live")
def test_request_duration_follows_round_trips_and_retransmissions(cluster: RunningCluster, tmp_path: Path) -> None:
    (tmp_path / "page").write_text(PAGE)
    client, url = cluster["n1"], f"http://n2:{PORT}/page"
    serve = ["python3", "-m", "http.server", "--directory", str(tmp_path), str(PORT)]
    with server(cluster["n2"], serve, PORT):
        near = min(seconds(client, url) for _ in range(5))
        with cluster.inject("n2", delay="20ms"):
            far = min(seconds(client, url) for _ in range(5))
        with cluster.inject("n2", rules=[f"drop tcp.dport == {PORT} and nth(1)"]):
            retransmitted = seconds(client, url)
    assert near < 0.04
    assert 0.08 <= far < 0.16  # a round trip for the connection, one for the request, 20 ms each way
    assert retransmitted >= 1.0  # the SYN is lost; TCP retransmits it after 1 s (RFC 6298)
