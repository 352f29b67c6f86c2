"""A description four times as large takes four times the work, not sixteen.

Work is the number of executed Python instructions, equal on every machine. It does not see inside calls of C, so a time
is measured as well.
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
    """Names without numbers that could be addresses, in a network that has hardly room for them."""
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
GROWTH = (
    1.1  # of the work for each; linear code stays within 1.05, by logarithms and by what small clusters do not have
)


def size(layout: Layout) -> int:
    return len(layout.nodes) + len(layout.switches) + len(layout.links)


def work(action: Callable[[], object]) -> int:
    """The instructions that an action executes."""
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


def repeated_work(action: Callable[[], object]) -> int:
    """The instructions that an action executes when it is executed again: from Python 3.12 on, the first execution of a
    function with a trace function is not counted in full."""
    work(action)
    return work(action)


def layout_of(text: str) -> Layout:
    return resolve(parse(text, "growth", name="growth"))


@pytest.mark.parametrize("name", DESCRIPTIONS)
def test_the_work_for_a_layout_grows_with_its_size(name: str) -> None:
    describe = DESCRIPTIONS[name]
    texts = [describe(SMALL), describe(4 * SMALL)]
    sizes = [size(layout_of(text)) for text in texts]
    small_work, large_work = (repeated_work(lambda text=text: layout_of(text)) for text in texts)  # type: ignore[misc]
    assert large_work / sizes[1] < GROWTH * small_work / sizes[0]


@pytest.mark.parametrize("name", ["line", "star", "hosts"])
def test_the_work_for_a_plan_grows_with_its_operations(name: str) -> None:
    layouts = [layout_of(DESCRIPTIONS[name](count)) for count in (SMALL, 4 * SMALL)]
    lengths = [len(plan(layout, ExistingState())) for layout in layouts]
    small_work, large_work = (repeated_work(lambda layout=layout: plan(layout, ExistingState())) for layout in layouts)  # type: ignore[misc]
    assert large_work / lengths[1] < GROWTH * small_work / lengths[0]


def test_the_forwarding_table_of_a_switch_is_computed_on_demand() -> None:
    for _ in range(2):  # see `repeated_work`
        layout = layout_of(DESCRIPTIONS["ring"](SMALL))
        table = layout.switches[0].forwarding
        first, last = layout.nodes[0].nics[0].mac, layout.nodes[-1].nics[0].mac
        of_size = work(partial(len, table))
        of_first_use, of_next_use = work(partial(getitem, table, last)), work(partial(getitem, table, first))
    assert of_size < 100
    assert of_first_use > 50 * SMALL
    assert of_next_use < 100
    assert len(table) == len(dict(table)) == SMALL


def test_unused_names_in_tags_are_not_all_compared_with_every_name() -> None:
    nodes = parse(DESCRIPTIONS["star"](SMALL), "growth").nodes
    wrong_names = [f"n{1000 + number}" for number in range(8 * SMALL)]
    _, _, problems = add_tags(nodes, (), {"tag": wrong_names})
    assert len(problems) == len(wrong_names)
    assert problems[0].suggestion
    assert not problems[-1].suggestion


@pytest.mark.alone
def test_the_time_for_a_ring_grows_with_its_size() -> None:
    """Quadratic would be 16 times as long."""
    small_time, large_time = (min(_seconds(DESCRIPTIONS["ring"](count)) for _ in range(3)) for count in (500, 2_000))
    assert large_time < 9 * small_time


def _seconds(text: str) -> float:
    gc.collect()
    start_time = time.process_time()
    layout_of(text)
    return time.process_time() - start_time
