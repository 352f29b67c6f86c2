"""Tags select links for injections, and changed tags need no operation."""

from __future__ import annotations

import pytest

from testbed.cluster.faults.injections import links_of, select_directions
from testbed.errors import NotFoundError
from testbed.spec.model import Description
from testbed.spec.resolver import resolve
from tests.unit.cluster.kernel_model import operations_of_change

TAGS = {"client": ["n1", "n2"], "slow": ["n2--s1", "n3--s1"]}
STAR = resolve(Description.star(4, tags=TAGS))
NAMES = [link.name for link in STAR.links]


def test_a_change_of_only_tags_needs_no_operation() -> None:
    untagged, tagged = Description.star(4, delay="1ms"), Description.star(4, delay="1ms", tags=TAGS)
    assert operations_of_change(untagged, tagged) == []
    assert operations_of_change(tagged, untagged) == []


def test_a_tag_selects_links_that_have_it_and_all_links_of_nodes_that_have_it() -> None:
    assert [link.name for link in links_of(STAR, "@client")] == NAMES[:2]
    assert [link.name for link in links_of(STAR, "@slow")] == NAMES[1:3]
    tagged = resolve(Description.star(4, tags={"both": ["n1", "n1--s1", "n3--s1"]}))
    assert [link.name for link in links_of(tagged, "@both")] == [NAMES[0], NAMES[2]]


def test_directions_are_relative_to_each_tagged_element() -> None:
    assert select_directions(STAR, "@client", "out") == ((NAMES[0], "forward"), (NAMES[1], "forward"))
    assert select_directions(STAR, "@client", "in") == ((NAMES[0], "backward"), (NAMES[1], "backward"))
    assert select_directions(STAR, ("n1", "@client"), "out") == select_directions(STAR, "@client", "out")
    assert select_directions(STAR, "@slow", "") == tuple(
        (name, direction) for name in NAMES[1:3] for direction in ("forward", "backward")
    )
    with pytest.raises(NotFoundError, match="no direction 'out' there"):
        select_directions(STAR, "@slow", "out")


def test_an_unknown_tag_is_rejected_with_the_nearest() -> None:
    with pytest.raises(NotFoundError, match="has the tag 'slwo'; did you mean '@slow'"):
        links_of(STAR, "@slwo")
