"""Requirements of a layout on this machine: datapaths that are selected by name."""

from __future__ import annotations

import pytest

from testbed import Cluster
from testbed.cluster.plan.host_requirements import check_supported
from testbed.errors import UnsupportedError
from testbed.kernel import capabilities
from testbed.kernel.datapaths import Capabilities
from testbed.spec.elements import Link, Node
from testbed.spec.layout import ConfiguredDatapath, Layout
from testbed.spec.resolver import resolve


@pytest.fixture(autouse=True)
def _no_netem(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run on a machine whose kernel has no netem."""
    machine = Capabilities(tbf=True, bpf=True, reasons={"netem": "this kernel has no netem"})
    monkeypatch.setattr(capabilities, "probe_capabilities", lambda: machine)


def pair(datapath: ConfiguredDatapath) -> Layout:
    link = Link(ends=["n1", "n2"], datapath=datapath)
    return resolve(Cluster(name="pair", nodes=[Node(name="n1"), Node(name="n2")], links=[link]))


REMEDY = "'testbed doctor' shows how to enable it, and without it testbed selects a datapath for each link"


def test_a_datapath_that_is_asked_for_and_missing_is_rejected_although_no_link_is_impaired() -> None:
    with pytest.raises(UnsupportedError) as caught:
        check_supported(resolve(Cluster.star(2)), "netem")
    reason = f"'--datapath netem' is not possible: this kernel has no netem; {REMEDY}"
    assert str(caught.value) == f"star-2 cannot be brought up:\n  {reason}"


def test_a_missing_datapath_of_a_link_is_rejected_with_the_links_name() -> None:
    with pytest.raises(UnsupportedError) as caught:
        check_supported(pair("netem"))
    reason = f'datapath = "netem" of n1:eth0--n2:eth0 is not possible: this kernel has no netem; {REMEDY}'
    assert str(caught.value) == f"pair cannot be brought up:\n  {reason}"


@pytest.mark.parametrize("datapath", ["auto", "direct", "tc", "relay"])
def test_other_datapaths_are_accepted(datapath: ConfiguredDatapath) -> None:
    check_supported(pair(datapath))
    check_supported(pair("relay"), "netem")  # no link would use it
