"""A web server and its client in two nodes: a request takes as long as the network's impairment makes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed import RunningCluster, RunningNode
from tests.live.applications.servers import server

pytestmark = [pytest.mark.requires("root", "curl"), pytest.mark.usefixtures("machine")]

PAGE = "a page of " + "many " * 2000 + "words"
PORT = 8000


def seconds(client: RunningNode, url: str) -> float:
    """How long a request took, with its connection, that brought the page."""
    answer = client.run(["curl", "-sS", "-w", "\n%{time_total}", url], timeout=60).stdout
    page, _, took = answer.rpartition("\n")
    assert page == PAGE
    return float(took)


@pytest.mark.cluster("star-2", mode="live")
def test_a_request_takes_the_round_trips_and_the_time_outs_that_it_needs(
    cluster: RunningCluster, tmp_path: Path
) -> None:
    (tmp_path / "page").write_text(PAGE)
    client, url = cluster["n1"], f"http://n2:{PORT}/page"
    serve = ["python3", "-m", "http.server", "--directory", str(tmp_path), str(PORT)]
    with server(cluster["n2"], serve, PORT):
        near = min(seconds(client, url) for _ in range(5))
        with cluster.inject("n2", delay="20ms"):
            far = min(seconds(client, url) for _ in range(5))
        with cluster.inject("n2", rules=[f"drop tcp.dport == {PORT} and nth(1)"]):
            repeated = seconds(client, url)
    assert near < 0.04
    assert 0.08 <= far < 0.16  # a connection is a round trip, a request another, of 20 ms each way
    assert repeated >= 1.0  # the first frame opens the connection; it is sent again after a second (RFC 6298)
