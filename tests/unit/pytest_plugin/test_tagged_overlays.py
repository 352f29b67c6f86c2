"""Overlays of a simulated cluster by tag, and unknown attributes of the cluster fixture."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed import Cluster
from testbed.errors import NotFoundError
from testbed.pytest_plugin.under_test import Overlay, SimulatedCluster, apply_overlays
from testbed.spec.elements import Impairments
from testbed.spec.resolver import resolve

STAR = Cluster.star(3, tags={"client": ["n1", "n2"], "slow": ["n3--s1"]})


def losses(*overlays: Overlay) -> list[tuple[float, float]]:
    return [(link.forward.loss, link.backward.loss) for link in resolve(apply_overlays(STAR, overlays)).links]


def test_a_tag_selects_the_directions_of_all_its_elements() -> None:
    halves = Impairments(loss=0.5)
    assert losses(Overlay("@client", halves, "out")) == [(0.5, 0.0), (0.5, 0.0), (0.0, 0.0)]
    assert losses(Overlay("@slow", halves)) == [(0.0, 0.0), (0.0, 0.0), (0.5, 0.5)]


def test_a_cluster_with_overlays_keeps_its_tags() -> None:
    layout = resolve(apply_overlays(STAR, [Overlay("@client", Impairments(loss=0.5))]))
    assert [node.tags for node in layout.nodes] == [("client",), ("client",), ()]
    assert layout.links[2].tags == ("slow",)


def test_an_unknown_tag_is_rejected_with_the_nearest() -> None:
    with pytest.raises(NotFoundError, match="did you mean '@client'"):
        apply_overlays(STAR, [Overlay("@cleint", Impairments(loss=0.5))])


@pytest.mark.parametrize(
    ("name", "hint"), [("partition", "; a cluster in namespaces has it as 'cluster.live.partition'"), ("pratition", "")]
)
def test_an_unknown_attribute_names_the_method_of_the_live_cluster(name: str, hint: str, tmp_path: Path) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(SimulatedCluster(STAR, tmp_path), name)
    assert str(caught.value) == f"the fixture's cluster has no attribute {name!r}{hint}"
    assert [Path(str(entry.path)) for entry in caught.traceback.filter(caught)] == [Path(__file__)]
