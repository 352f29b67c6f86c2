"""Changes by `up` other than a link's keys: the seed, the contents of trace files, removed links."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed import Cluster, RunningCluster
from testbed.cluster.records.state import Store
from testbed.cluster.removal import down
from tests.live.iproute2 import ping
from tests.live.machine_state import Machine
from tests.live.traffic import events_of, relay_report

pytestmark = [pytest.mark.requires("root", "ip", "ping"), pytest.mark.usefixtures("machine")]

NAME = "changed"


@pytest.fixture(autouse=True)
def _down(machine: Machine) -> Iterator[None]:  # noqa: ARG001  its check runs after this fixture's end
    yield
    down(Store(), NAME)


def up(impairment: dict[str, str], seed: int = 0) -> RunningCluster:
    ends = {"ends": ["n1", "n2"], "forward": impairment}
    description = Cluster.model_validate(
        {"name": NAME, "seed": seed, "node": [{"name": "n1"}, {"name": "n2"}], "link": [ends]}
    )
    return description.up(keep=True, origin="test", datapath="relay")


def milliseconds(cluster: RunningCluster) -> float:
    output = cluster["n1"].run(["ping", "-n", "-q", "-c1", "-W5", "n2"]).stdout
    return float(output.rpartition(" = ")[2].split("/")[0])


def test_a_changed_content_of_a_trace_file_is_applied(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    trace.write_text("1ms\n")
    requested = {"delay": "1ms", "distribution": "trace", "jitter_file": str(trace)}
    cluster = up(requested)
    ping(cluster, "n1", "n2")
    assert milliseconds(cluster) < 200
    trace.write_text("400ms\n")
    assert milliseconds(up(requested)) > 400


def test_another_seed_restarts_the_fates() -> None:
    cluster = up({"delay": "1ms"}, seed=1)
    ping(cluster, "n1", "n2")
    (link,) = relay_report(cluster)["links"].values()
    assert link["forward"]["counters"]["offered"] > 0
    up({"delay": "1ms"}, seed=1)
    (link,) = relay_report(cluster)["links"].values()
    assert link["forward"]["counters"]["offered"] > 0
    up({"delay": "1ms"}, seed=2)
    (link,) = relay_report(cluster)["links"].values()
    assert link["forward"]["counters"]["offered"] == 0


def test_an_injection_removed_with_its_links_is_logged() -> None:
    cluster = up({})
    cluster.inject("n1", loss="1%")
    description = Cluster.model_validate({"name": NAME, "node": [{"name": "n1"}, {"name": "n2"}]})
    description.up(keep=True, origin="test")
    assert cluster.state.injected == ()
    assert [(event["number"], event["reason"]) for event in events_of(cluster, "heal")] == [
        (1, "the description no longer has its links")
    ]
