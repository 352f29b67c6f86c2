"""Injections over declared impairments, selection of links and directions by name, and injections in the state file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.cluster.faults.injections import (
    BOTH,
    DirectionKey,
    DirectionName,
    Injection,
    directions_of,
    follow_layout,
    in_force,
    is_down,
    links_of,
    restrict,
)
from testbed.cluster.plan.link_decisions import decide
from testbed.cluster.records.paths import example_pair
from testbed.cluster.records.state import State
from testbed.errors import DescriptionError, NotFoundError, UnsupportedError
from testbed.kernel.processes import Identity
from testbed.spec.layout import Impairment, Layout
from testbed.spec.model import Description, Link, Node, Switch
from testbed.spec.resolver import resolve

STAR = resolve(Description.star(3))
LINK = STAR.links[0]
NAME = "n1:eth0--s1:1"
BOTH_DIRECTIONS: tuple[DirectionKey, ...] = tuple((NAME, direction) for direction in BOTH)
DECLARED = replace(LINK, forward=Impairment(delay=5, loss=0.1))


def injection(number: int, directions: tuple[DirectionKey, ...] = BOTH_DIRECTIONS, **keys: object) -> Injection:
    return Injection(number, f"the {number}th", directions, keys)


def forward(*injections: Injection) -> Impairment:
    return in_force(DECLARED, "forward", injections).impairment


# Effective impairments


def test_without_injections_the_declared_impairments_apply() -> None:
    assert forward() == DECLARED.forward
    assert in_force(DECLARED, "backward", []).impairment == Impairment()


def test_only_the_named_keys_of_the_named_directions_are_changed() -> None:
    injected = injection(1, ((NAME, "forward"),), delay=9, duplicate=0.2)
    assert forward(injected) == Impairment(delay=9, loss=0.1, duplicate=0.2)
    assert in_force(DECLARED, "backward", [injected]).impairment == Impairment()
    on_other_link = injection(2, (("n2:eth0--s1:2", "forward"),), delay=9)
    assert forward(on_other_link) == DECLARED.forward


def test_later_injections_override_earlier_ones_key_by_key() -> None:
    earlier, later = injection(1, delay=7, corrupt=0.1), injection(2, delay=8)
    assert forward(earlier, later) == Impairment(delay=8, loss=0.1, corrupt=0.1)
    assert forward(earlier) == Impairment(delay=7, loss=0.1, corrupt=0.1)
    assert forward(later) == Impairment(delay=8, loss=0.1)


def test_an_injection_of_zero_overrides_a_declared_value() -> None:
    assert forward(injection(1, loss=0.0)) == Impairment(delay=5)


def test_an_injected_impairment_replaces_a_declared_one_that_excludes_it() -> None:
    rate_limited = replace(LINK, forward=Impairment(rate=1000, queue_frames=5))
    traced = in_force(rate_limited, "forward", [injection(1, rate_trace="t", queue=5000)]).impairment
    assert traced == Impairment(rate_trace="t", queue=5000)
    replaced = in_force(rate_limited, "forward", [injection(1, rate_trace="t"), injection(2, rate=77)]).impairment
    assert replaced == Impairment(rate=77, queue_frames=5)


def test_removing_a_jitter_removes_its_distribution() -> None:
    jittery = replace(LINK, forward=Impairment(delay=5, jitter=1, distribution="table", jitter_file="t"))
    assert in_force(jittery, "forward", [injection(1, jitter=0)]).impairment == Impairment(delay=5)


def test_an_injection_that_contradicts_the_description_is_rejected_with_its_key() -> None:
    with pytest.raises(DescriptionError) as caught:
        in_force(LINK, "forward", [injection(1, jitter=5)])
    assert f"{NAME} forward: jitter: found jitter without a delay" in str(caught.value)
    assert forward(injection(1, jitter=5)).jitter == 5  # the declared impairment has a delay


def test_a_refusal_by_the_selected_datapath_says_how_to_select_another_one() -> None:
    refused = replace(STAR, links=(replace(LINK, forward=Impairment(delay=5)), *STAR.links[1:]))
    with pytest.raises(
        UnsupportedError, match=r"n1:eth0--s1:1: the datapath 'tc'(.|\n)*'--datapath tc' allows no other"
    ):
        decide(refused, (), "tc", Path())


def test_rules_keep_their_names_while_others_are_added_and_removed() -> None:
    first = Injection(1, "a", rules=(((NAME, "forward"), "drop udp"), ((NAME, "forward"), "drop tcp")))
    second = Injection(2, "b", rules=(((NAME, "forward"), "drop icmp"), ((NAME, "backward"), "drop arp")))
    assert in_force(LINK, "forward", [first, second]).rules == {
        "1.0": "drop udp",
        "1.1": "drop tcp",
        "2.0": "drop icmp",
    }
    assert in_force(LINK, "forward", [second]).rules == {"2.0": "drop icmp"}
    assert in_force(LINK, "backward", [first, second]).complete.rules == ("drop arp",)


def test_a_link_is_down_while_any_injection_takes_it_down() -> None:
    first, second = Injection(1, "a", down=(NAME,)), Injection(2, "b", down=(NAME, "n2:eth0--s1:2"))
    assert is_down(LINK, [first, second])
    assert is_down(LINK, [second])
    assert not is_down(LINK, [])
    assert not is_down(STAR.links[2], [first, second])


# Changed layouts


def test_injections_on_a_removed_link_are_removed() -> None:
    smaller = Layout(STAR.name, STAR.seed, STAR.nodes, STAR.switches, STAR.links[1:])
    on_removed = injection(1)
    on_both = Injection(
        2,
        "b",
        (*BOTH_DIRECTIONS, ("n2:eth0--s1:2", "forward")),
        {"delay": 1},
        (((NAME, "forward"), "drop udp"),),
        down=(NAME,),
    )
    untouched = injection(3, (("n2:eth0--s1:2", "forward"),), delay=1)
    assert restrict(smaller, [on_removed, on_both, untouched]) == (
        replace(on_both, places=(("n2:eth0--s1:2", "forward"),), rules=(), down=()),
        untouched,
    )
    assert restrict(STAR, [on_removed, on_both, untouched]) == (on_removed, on_both, untouched)


# Selection


@pytest.mark.parametrize(
    ("target", "indices"),
    [
        ("all", [0, 1, 2]),
        ("s1", [0, 1, 2]),
        ("n2", [1]),
        ("n2:eth0", [1]),
        ("s1:3", [2]),
        ("n1--s1", [0]),
        ("s1--n1", [0]),
        ("n1:eth0--s1:1", [0]),
        ("s1:1--n1:eth0", [0]),
    ],
)
def test_a_link_is_selected_by_any_of_its_names(target: str, indices: list[int]) -> None:
    assert links_of(STAR, target) == [STAR.links[number] for number in indices]


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("n9", "no link, node or switch 'n9'"),
        ("n1--s2", "did you mean 'n1--s1'?"),
        ("n1--n2", "(links: n1:eth0--s1:1, n2:eth0--s1:2, n3:eth0--s1:3)"),
        ("", "no link, node or switch ''"),
        ("n1,n2", "no link, node or switch 'n1,n2'; a tag selects several"),
    ],
)
def test_an_unknown_link_is_rejected_with_the_known_links(target: str, message: str) -> None:
    with pytest.raises(NotFoundError) as caught:
        links_of(STAR, target)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("target", "direction", "expected"),
    [
        ("n1", "", list(BOTH_DIRECTIONS)),
        ("n1", "out", [(NAME, "forward")]),
        ("n1", "in", [(NAME, "backward")]),
        ("n1:eth0", "out", [(NAME, "forward")]),
        ("s1:1", "out", [(NAME, "backward")]),
        ("n1--s1", "n1-s1", [(NAME, "forward")]),
        ("s1--n1", "n1-s1", [(NAME, "forward")]),
        ("n1--s1", "s1:1-n1:eth0", [(NAME, "backward")]),
        ("n1--s1", "backward", [(NAME, "backward")]),
    ],
)
def test_a_direction_is_selected_by_any_of_its_names(target: str, direction: str, expected: list[DirectionKey]) -> None:
    assert list(directions_of(links_of(STAR, target), target, direction)) == expected


def test_out_of_a_switch_is_towards_every_node() -> None:
    directions = directions_of(links_of(STAR, "s1"), "s1", "out")
    assert directions == tuple((link.name, "backward") for link in STAR.links)


def test_an_unknown_direction_is_rejected_with_the_known_directions() -> None:
    with pytest.raises(NotFoundError) as caught:
        directions_of(links_of(STAR, "n1"), "n1", "n1-n2")
    assert "no direction 'n1-n2' there; n1:eth0--s1:1 has 'out' or 'n1-s1'" in str(caught.value)


# State file


keys = st.fixed_dictionaries(
    {},
    optional={
        "delay": st.integers(0, 10**12),
        "loss": st.floats(0, 1),
        "gemodel": st.tuples(*[st.floats(0, 1)] * 4),
        "loss_pattern": st.text(max_size=20),
    },
)
directions = st.sampled_from(BOTH)
texts = st.text(max_size=20)
numbers = st.integers(0, 2**32)
identities = st.builds(Identity, st.uuids().map(str), numbers, numbers, numbers)


@st.composite
def injections(draw: st.DrawFn) -> Injection:
    def directions_of_links() -> list[tuple[str, DirectionName]]:
        return draw(st.lists(st.tuples(texts, directions), max_size=3))

    return Injection(
        draw(st.integers(1, 10**6)),
        draw(texts),
        tuple(directions_of_links()),
        draw(keys),
        tuple((direction, draw(texts)) for direction in directions_of_links()),
        draw(texts),
        tuple(draw(st.lists(texts, max_size=3))),
        tuple(draw(st.lists(identities, max_size=2))),
        draw(st.integers(0, 2**62)),
    )


@given(injections())
def test_an_injection_survives_writing_and_reading(original: Injection) -> None:
    assert Injection.from_json(json.loads(json.dumps(original.to_json()))) == original


def star_layout(*nodes: str) -> Layout:
    links = [Link(ends=[node, "s1"]) for node in nodes]
    trunks = [Link(ends=["s1", "s2"]), Link(ends=["s1", "s2"]), Link(ends=["last", "s2"])]
    return resolve(
        Description(
            name="x",
            nodes=[Node(name=node) for node in (*nodes, "last")],
            switches=[Switch(name="s1", ports=8), Switch(name="s2")],
            links=[*links, *trunks],
        )
    )


def test_an_injection_follows_its_cable_when_its_ports_are_renumbered() -> None:
    before, after = star_layout("n1", "n2", "n3"), star_layout("n1", "n3")
    assert before.links[2].name != after.links[1].name
    remaining = Injection(
        1, "x", ((before.links[2].name, "forward"),), {"delay": 1}, (((before.links[4].name, "backward"), "drop"),)
    )
    removed = Injection(2, "y", down=(before.links[1].name,))
    followed = Injection(
        1, "x", ((after.links[1].name, "forward"),), {"delay": 1}, (((after.links[3].name, "backward"), "drop"),)
    )
    assert follow_layout(before, after, [remaining, removed]) == (followed,)
    assert follow_layout(before, before, [remaining, removed]) == (remaining, removed)


def test_the_example_of_a_path_crosses_the_injected_link() -> None:
    line = Description(
        name="line",
        nodes=[Node(name=name) for name in ("h1", "h2", "r1", "r2")],
        links=[Link(ends=ends) for ends in (("h1", "r1"), ("r1", "r2"), ("r2", "h2"))],
    )
    layout = resolve(line)
    state = State("c", "", "up", True, Identity("", 0, 0, 0), layout, {}, {}, 0)
    assert example_pair(state, {layout.links[1].name}) == ("r1", "r2")
    assert example_pair(replace(state, layout=STAR), {NAME}) == ("n1", "n2")
