"""The cost of resolving and planning is linear in the size of a description.

It is counted in executed Python instructions, which are equal on every machine. These exclude calls of C, so that one
test measures time as well.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from functools import partial
from operator import getitem
from types import FrameType

import pytest

from testbed.cluster.plan.draft import ExistingState
from testbed.cluster.plan.planner import plan
from testbed.spec.layout import Layout
from testbed.spec.loader import parse
from testbed.spec.resolver import resolve
from testbed.spec.tag_tables import add_tags


def shape(name: str, text: str) -> str:
    return f'[generate]\nshape = "{name}"\n{text}\n'


def hosts(count: int) -> str:
    """Return nodes whose names determine no address, in a network with little room beyond them."""
    prefix = 30 - count.bit_length()
    nodes = "".join(f'[[node]]\nname = "host-{number}"\n' for number in range(count))
    links = "".join(f'[[link]]\nends = ["host-{number}", "s{number % 4}"]\n' for number in range(count))
    switches = "".join(f'[[switch]]\nname = "s{number}"\n' for number in range(4))
    trunks = "".join(f'[[link]]\nends = ["s{number}", "s{number + 1}"]\n' for number in range(3))
    return f'name = "hosts"\nnetwork = "10.0.0.0/{prefix}"\n{nodes}{switches}{links}{trunks}'


def pairs(count: int) -> str:
    """Return nodes in pairs, half of the pairs with declared networks, half with networks from the pool."""
    text = 'name = "pairs"\n'
    for number in range(count):
        network = f"10.{128 + number // 64}.{number % 64 * 4}"
        for host, name in enumerate(("a", "b"), 1):
            text += f'[[node]]\nname = "{name}{number}"\n[[node.nic]]\naddresses = ["{network}.{host}/24"]\n'
            text += f'[[node]]\nname = "c{name}{number}"\n'
        text += f'[[link]]\nends = ["a{number}", "b{number}"]\n[[link]]\nends = ["ca{number}", "cb{number}"]\n'
    return text


DESCRIPTIONS: dict[str, Callable[[int], str]] = {
    "ring": lambda n: shape("ring", f"nodes = {n}"),
    "line": lambda n: shape("line", f"nodes = {n}\n[defaults.link]\ndelay = '1us'"),
    "star": lambda n: shape("star", f"nodes = {n}"),
    "full mesh": lambda n: shape("full-mesh", f"nodes = {n // 3}"),
    "fat tree": lambda n: shape("fat-tree", f"k = {4 if n == SMALL else 8}"),
    "hosts": hosts,
    "pairs": pairs,
}
SMALL = 30
MAX_GROWTH = 1.1
"""Largest growth of instructions per element from SMALL to 4 * SMALL: linear code with sorting stays within 1.05."""


def size(layout: Layout) -> int:
    return len(layout.nodes) + len(layout.switches) + len(layout.links)


def count_instructions(action: Callable[[], object]) -> int:
    """Return the number of Python instructions that an action executes."""
    count = 0

    def trace(frame: FrameType, event: str, _argument: object) -> Callable[..., object]:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    finally:
        sys.settrace(before)
    return count


def instructions_when_warm(action: Callable[[], object]) -> int:
    """Count the instructions of a second execution: Python 3.12 and later do not trace the first one completely."""
    count_instructions(action)
    return count_instructions(action)


def layout_of(text: str) -> Layout:
    return resolve(parse(text, "growth", name="growth"))


@pytest.mark.parametrize("name", DESCRIPTIONS)
def test_the_work_for_a_layout_grows_with_its_size(name: str) -> None:
    describe = DESCRIPTIONS[name]
    texts = [describe(SMALL), describe(4 * SMALL)]
    sizes = [size(layout_of(text)) for text in texts]
    small_work, large_work = (instructions_when_warm(lambda text=text: layout_of(text)) for text in texts)  # type: ignore[misc]
    assert large_work / sizes[1] < MAX_GROWTH * small_work / sizes[0]


@pytest.mark.parametrize("name", ["line", "star", "hosts"])
def test_the_work_for_a_plan_grows_with_its_operations(name: str) -> None:
    layouts = [layout_of(DESCRIPTIONS[name](count)) for count in (SMALL, 4 * SMALL)]
    lengths = [len(plan(layout, ExistingState())) for layout in layouts]
    small_work, large_work = (
        instructions_when_warm(lambda layout=layout: plan(layout, ExistingState())) for layout in layouts
    )  # type: ignore[misc]
    assert large_work / lengths[1] < MAX_GROWTH * small_work / lengths[0]


def test_the_forwarding_table_of_a_switch_is_computed_on_demand() -> None:
    for _ in range(2):  # see `instructions_when_warm`
        layout = layout_of(DESCRIPTIONS["ring"](SMALL))
        table = layout.switches[0].forwarding
        first, last = layout.nodes[0].nics[0].mac, layout.nodes[-1].nics[0].mac
        for_length = count_instructions(partial(len, table))
        for_first_lookup, for_next_lookup = (
            count_instructions(partial(getitem, table, last)),
            count_instructions(partial(getitem, table, first)),
        )
    assert for_length < 100
    assert for_first_lookup > 50 * SMALL
    assert for_next_lookup < 100
    assert len(table) == len(dict(table)) == SMALL


def test_suggestions_are_computed_for_the_first_unknown_names_only() -> None:
    nodes = parse(DESCRIPTIONS["star"](SMALL), "growth").nodes
    wrong_names = [f"n{1000 + number}" for number in range(8 * SMALL)]
    _, _, problems = add_tags(nodes, (), {"tag": wrong_names})
    assert len(problems) == len(wrong_names)
    assert problems[0].suggestion
    assert not problems[-1].suggestion


@pytest.mark.alone
def test_the_time_for_a_ring_grows_with_its_size() -> None:
    """Four times the size: linear takes 4 times as long, quadratic 16 times."""
    small_time, large_time = (min(cpu_seconds(DESCRIPTIONS["ring"](count)) for _ in range(3)) for count in (500, 2_000))
    assert large_time < 9 * small_time


def cpu_seconds(text: str) -> float:
    gc.collect()
    start_time = time.process_time()
    layout_of(text)
    return time.process_time() - start_time
