"""Layouts as JSON and in Graphviz, and the imports that reading one takes."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hypothesis import given

from testbed.spec.graphviz import to_dot
from testbed.spec.layout_json import from_json, to_json
from testbed.spec.loader import load, parse, topologies
from testbed.spec.model import Description
from testbed.spec.resolver import resolve
from tests.unit.spec.cluster_strategies import descriptions


@pytest.mark.parametrize("name", [name for name, _ in topologies()])
def test_a_layout_survives_json(name: str) -> None:
    layout = resolve(load(name).description)
    assert from_json(json.loads(json.dumps(to_json(layout)))) == layout


@given(descriptions())
def test_any_layout_survives_json(description: Description) -> None:
    layout = resolve(description)
    assert from_json(json.loads(json.dumps(to_json(layout)))) == layout


def test_a_fully_specified_layout_survives_json() -> None:
    text = """
    name = "c"
    seed = 5
    [[node]]
    name = "n1"
    cpus = "0-1"
    cpu_share = 0.5
    memory = "1MiB"
    environment = {A = "1"}
    files = {"/x" = "y"}
    [[node]]
    name = "n2"
    [[link]]
    ends = ["n1", "n2"]
    delay = "1ms"
    jitter = "1us"
    forward = {rate = "1gbit", queue = "64KiB", loss = "1%", corrupt = "1%", duplicate = "1%", reorder = "1%"}
    [[link]]
    ends = ["n1", "n2"]
    datapath = "direct"
    """
    layout = resolve(parse(text, "x"))
    assert from_json(json.loads(json.dumps(to_json(layout)))) == layout


def test_json_omits_defaults() -> None:
    data = to_json(resolve(Description.back_to_back()))
    assert data["links"] == [{"a": ["n1", "eth0"], "b": ["n2", "eth0"]}]
    assert sorted(data["nodes"][0]) == ["name", "nics"]


def test_a_graph_has_every_node_switch_and_link_with_ports_and_impairments() -> None:
    dot = to_dot(resolve(Description.star(2, delay="10us", loss="1%")))
    assert dot.startswith('graph "star-2" {')
    assert '"n1" [shape=box, label="n1\\n10.0.0.1"];' in dot
    assert '"s1" [shape=ellipse, label="s1"];' in dot
    assert '"n2" -- "s1" [taillabel="eth0", headlabel="2", label="delay 10us, loss 1%"];' in dot


def test_a_graph_distinguishes_directions() -> None:
    text = 'name = "c"\nnode = [{name = "a"}, {name = "b"}]\n[[link]]\nends = ["a", "b"]\nforward = {loss = "1%"}'
    assert 'label="→ loss 1%"' in to_dot(resolve(parse(text, "x")))


@pytest.mark.parametrize(
    "module", ["testbed.spec.layout_json", "testbed.spec.graphviz", "testbed.spec.shipped", "testbed.errors"]
)
def test_modules_for_commands_that_parse_no_description_do_not_import_validation(module: str) -> None:
    code = f"import sys, {module}; print([m for m in ('testbed.spec.element', 'tomllib') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
