"""Declared keys of a direction reach the model; invalid and contradictory ones are rejected."""

from __future__ import annotations

import pytest

from testbed.errors import DescriptionError
from testbed.spec.layout import Impairment
from testbed.spec.layout_json import from_json, to_json
from testbed.spec.loader import parse
from testbed.spec.losses import check_pattern, parse_gemodel, parse_pattern
from testbed.spec.model import Description
from testbed.spec.problems import MismatchError
from testbed.spec.resolver import resolve
from tests.unit.fates.wire_frames import LINK, direction

EVERY_KEY = """
name = "c"
node = [{name = "n1"}, {name = "n2"}]
[[link]]
ends = ["n1", "n2"]
[link.forward]
delay = "2ms"
jitter = "1ms"
distribution = "table"
jitter_file = "wan.dist"
rate = "10mbit"
queue_frames = 50
loss = "1%"
gemodel = "1% 30%"
loss_pattern = "24,5, 12"
corrupt = "1%"
corrupt_bits = 3
duplicate = "1%"
reorder = "1%"
minimum_frame = 60
overhead = 24
cell_size = 48
cell_overhead = 5
rules = ["drop tcp.dport == 5001 and nth(3)"]
[link.backward]
rate_trace = "up.trace"
distribution = "trace"
jitter_file = "delays.txt"
"""


def test_every_key_reaches_the_model() -> None:
    layout = resolve(parse(EVERY_KEY, "c.toml"))
    assert layout.links[0].forward == Impairment(
        delay=2_000_000,
        jitter=1_000_000,
        distribution="table",
        rate=10**7,
        loss=0.01,
        corrupt=0.01,
        duplicate=0.01,
        reorder=0.01,
        jitter_file="wan.dist",
        queue_frames=50,
        gemodel=(0.01, 0.3, 1.0, 0.0),
        loss_pattern="5, 12, 24",
        corrupt_bits=3,
        minimum_frame=60,
        overhead=24,
        cell_size=48,
        cell_overhead=5,
        rules=("drop tcp.dport == 5001 and nth(3)",),
    )
    backward = Impairment(rate_trace="up.trace", distribution="trace", jitter_file="delays.txt")
    assert layout.links[0].backward == backward
    assert from_json(to_json(layout)) == layout
    files = {"wan.dist": "0 8192", "up.trace": "1\n", "delays.txt": "0\n"}
    for impairment in (layout.links[0].forward, backward):
        assert direction(impairment, files=files).impairment == impairment


@pytest.mark.parametrize(
    ("keys", "key", "expected"),
    [
        ('gemodel = "1% 2% 3% 4% 5%"', "gemodel", "'p r 1-h 1-k'"),
        ('gemodel = "1% x"', "gemodel", "'p r 1-h 1-k'"),
        ("gemodel = 3", "gemodel", "'p r 1-h 1-k'"),
        ('loss_pattern = "0"', "loss_pattern", "counted from 1"),
        ('loss_pattern = "5, twelve"', "loss_pattern", "such as '5, 12, 24'"),
        ('loss_pattern = "8-5"', "loss_pattern", "counted from 1"),
        ('loss_pattern = "11 every 10"', "loss_pattern", "numbers up to the period 10"),
        ('loss_pattern = "1-999999999"', "loss_pattern", "at most 100,000 numbers"),
        ("queue_frames = 0", "queue_frames", "at least 1"),
        ('queue = "64KiB"\nqueue_frames = 5', "queue_frames", "one of them"),
        ("corrupt_bits = 2", "corrupt_bits", "the share of frames"),
        ('rate = "1gbit"\nrate_trace = "f"', "rate_trace", "one of them"),
        ('rate_trace = ""', "rate_trace", "the path of a file"),
        ('distribution = "trace"', "distribution", "a jitter_file"),
        ('delay = "1ms"\njitter = "1us"\njitter_file = "f"', "jitter_file", "'table' or 'trace'"),
        ('jitter = "1us"\ndistribution = "trace"\njitter_file = "f"', "jitter", "no jitter"),
        ("overhead = -15", "overhead", "at least -14"),
        ("cell_overhead = 5", "cell_overhead", "a cell_size"),
        ('rules = ["drop", " "]', "rules[2]", "a rule of at most"),
        ('rules = ["drop\\nudp"]', "rules[1]", "on one line"),
    ],
)
def test_an_invalid_value_or_a_contradiction_is_reported_with_its_key(keys: str, key: str, expected: str) -> None:
    text = f'name = "c"\nnode = [{{name = "n1"}}, {{name = "n2"}}]\n[[link]]\nends = ["n1", "n2"]\n{keys}'
    with pytest.raises(DescriptionError) as caught:
        parse(text, "c.toml")
    assert [problem.path for problem in caught.value.problems] == [f"link[1].{key}"]
    assert expected in caught.value.problems[0].expected


def test_python_and_toml_give_equal_faults() -> None:
    description = Description.back_to_back(gemodel=["1%", 0.3], rules=["drop arp"], loss_pattern="3 every 10")
    forward = resolve(description).links[0].forward
    assert forward == Impairment(gemodel=(0.01, 0.3, 1.0, 0.0), rules=("drop arp",), loss_pattern="3 every 10")
    assert direction(forward, link=LINK).impairment == forward


def test_patterns_are_normalized_to_the_shortest_form() -> None:
    assert check_pattern(" 9,1 , 3-4, 2 ") == "1-4, 9"
    assert parse_pattern("1-4, 9 every 12") == (frozenset({1, 2, 3, 4, 9}), 12)


def test_missing_parameters_of_gemodel_have_the_defaults_of_tc() -> None:
    assert parse_gemodel("25%") == (0.25, 0.75, 1.0, 0.0)
    assert parse_gemodel([0.25, "50%", 0.9]) == (0.25, 0.5, 0.9, 0.0)
    with pytest.raises(MismatchError):
        parse_gemodel("")
