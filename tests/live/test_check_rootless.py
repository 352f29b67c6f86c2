"""`testbed check` for an ordinary user's cluster, from inside its user namespace."""

from __future__ import annotations

import os
import signal
from importlib import import_module
from pathlib import Path

import pytest

from testbed import Cluster
from testbed.cluster import removal
from testbed.cluster.faults import fault_injection
from testbed.cluster.records.state import Store
from testbed.cluster.services import relay_client
from testbed.cluster.startup import bring_up
from testbed.controller.cluster_check import baseline, check, verdict
from testbed.controller.probing.routed_paths import THERE_AND_BACK
from testbed.controller.verdict.verdicts import Grade
from testbed.spec.resolver import resolve
from tests.live.ordinary_user import as_user, wait_for_success

pytestmark = [pytest.mark.requires("root", "userns"), pytest.mark.usefixtures("machine"), pytest.mark.timeout(180)]

# Modules that only a child uses are imported before it drops its privileges and cannot read them.
for _module in ("testbed.controller.probing.measurement",):
    import_module(_module)


@pytest.mark.parametrize("lasting", [True, False])
def test_an_ordinary_user_checks_a_cluster(home: Path, lasting: bool) -> None:
    layout = resolve(Cluster.star(2))

    def body() -> None:
        store = Store()
        bring_up(store, layout, name="star", origin="a test", lasting=lasting)
        fault_injection.inject(store, "star", "n1", {"delay": 20_000_000, "loss": 0.3})
        assert set(store.choose("star").datapaths.values()) == {"relay"}
        before = baseline("star")
        run_verdict = check("star")
        link = layout.links[0].name
        for direction in ("forward", "backward"):
            findings = {finding.what: finding for finding in run_verdict.of(link, direction)}
            earliest = findings["delay min"].measured
            assert earliest is not None
            assert earliest >= 20_000_000 - 50_000
            assert findings["loss"].grade in (
                Grade.TRUSTED,
                Grade.UNDECIDED,
            )  # an ordinary user's small socket buffers may overrun
            assert findings["loss"].interval is not None
        # A relay's death is detected, too.
        report = relay_client.report(store, store.choose("star"))
        assert report is not None
        os.kill(report["pid"], signal.SIGKILL)
        assert verdict("star", before).grade is Grade.INVALID
        removal.down(store, "star")

    wait_for_success(as_user(home, body))


def test_an_ordinary_user_checks_source_routed_links(home: Path) -> None:
    layout = resolve(Cluster.ring(3, kind="myrinet"))

    def body() -> None:
        store = Store()
        bring_up(store, layout, name="ring", origin="a test", lasting=False)
        fault_injection.inject(store, "ring", "n1", {"delay": 20_000_000})
        (link,) = [link.name for link in layout.links if "n1" in (link.a.owner, link.b.owner)]
        (earliest,) = check("ring", seconds=1).of(link, THERE_AND_BACK, "delay min")
        assert earliest.measured is not None
        assert earliest.measured >= 40_000_000 - 50_000
        removal.down(store, "ring")

    wait_for_success(as_user(home, body))
