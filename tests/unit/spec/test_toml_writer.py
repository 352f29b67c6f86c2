"""A description survives a round trip through TOML; the schema for editors accepts the shipped topologies."""

from __future__ import annotations

import functools
import tomllib
from importlib import resources

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.spec import units
from testbed.spec.loader import load, parse, topologies
from testbed.spec.model import Defaults, Description, Impairments, Link, Nic, Node, Switch
from testbed.spec.toml_writer import json_schema, to_toml
from tests.unit.spec.cluster_strategies import descriptions

_TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)


@st.composite
def impairments(draw: st.DrawFn) -> dict[str, object]:
    """Draw keys of an impairment that do not contradict each other, as text or as numbers."""
    share = st.floats(0, 1) | st.sampled_from(["5%", "0.1%", 0, 1])
    values = {
        "delay": draw(st.integers(1, 10**12).map(units.format_duration)),
        "jitter": draw(st.integers(0, 10**10).map(units.format_duration)),
        "distribution": draw(st.sampled_from(["uniform", "normal", "pareto"])),
        "rate": draw(st.sampled_from(["unlimited", "1.28gbit", "100mbps", "7bit"])),
        "queue": draw(st.integers(9014, 10**9)),
        **{key: draw(share) for key in ("loss", "corrupt", "duplicate", "reorder")},
        "gemodel": draw(st.lists(share, min_size=1, max_size=4) | st.just("1% 30%")),
        "loss_pattern": draw(st.sampled_from(["5, 12, 24", "7-9, 3", "3,1,2 every 10"])),
        "minimum_frame": draw(st.sampled_from([60, "64B"])),
        "overhead": draw(st.integers(-14, 1024)),
        "rules": draw(st.lists(st.sampled_from(["drop", 'delay 1ms link == "a--b"']), max_size=2)),
    }
    keys = draw(st.sets(st.sampled_from(sorted(values))))
    keys |= {"delay", "jitter"} if keys & {"jitter", "distribution", "reorder"} else set()
    keys |= {"rate"} if keys & {"minimum_frame", "overhead"} else set()
    return {key: value for key, value in values.items() if key in keys}


@st.composite
def complete_descriptions(draw: st.DrawFn) -> Description:
    """Draw a cluster that uses every key."""
    base = draw(descriptions(max_nodes=4))
    nodes = [
        Node(
            name=node.name,
            nics=node.nics,
            cpus=draw(st.lists(st.integers(0, 70), max_size=6)),
            cpu_share=draw(st.none() | st.floats(0.01, 64)),
            memory=draw(st.none() | st.integers(1, 2**45)),
            environment=draw(st.dictionaries(st.sampled_from(["A", "b.c", 'quoted "x"', "ä"]), _TEXT, max_size=2)),
            files=draw(st.dictionaries(st.sampled_from(["/etc/motd", "/a b", '/x"y']), _TEXT, max_size=2)),
        )
        for node in base.nodes
    ]
    links = [
        Link(
            ends=link.ends,
            forward=Impairments.model_validate(draw(impairments())),
            backward=Impairments.model_validate(draw(impairments())),
        ).model_copy(update=Impairments.model_validate(draw(impairments())).explicit())
        for link in base.links
    ]
    return Description(
        name=base.name,
        description=draw(_TEXT),
        seed=draw(st.integers(0, 2**63 - 1)),
        network=base.network,
        network6=base.network6,
        defaults=Defaults(mtu=base.defaults.mtu, link=Impairments.model_validate(draw(impairments()))),
        nodes=nodes,
        switches=[Switch(name=switch.name, ports=draw(st.sampled_from([None, 1000]))) for switch in base.switches],
        links=links,
    )


@given(complete_descriptions())
def test_a_description_survives_writing_and_reading(description: Description) -> None:
    text = to_toml(description)
    assert parse(text, "written") == description
    validator().validate(tomllib.loads(text))


@pytest.mark.parametrize("name", [name for name, _ in topologies()])
def test_a_shipped_topology_survives_writing_and_reading(name: str) -> None:
    description = load(name).description
    assert parse(to_toml(description), name) == description


def test_the_written_text_has_the_form_of_a_handwritten_file() -> None:
    description = Description(
        name="pair",
        defaults=Defaults(link=Impairments(delay="10us")),
        nodes=[Node(name="a", cpus="0-1,3", nics=[Nic(mtu=9000, addresses=["10.0.0.7/16"])]), Node(name="b")],
        links=[Link(ends=["a", "b"], loss="5%", backward={"rate": "1.28gbit"})],
    )
    assert to_toml(description) == (
        'name = "pair"\n\n[defaults.link]\ndelay = "10us"\n'
        '\n[[node]]\nname = "a"\ncpus = "0-1,3"\n\n[[node.nic]]\nmtu = 9000\naddresses = [\n    "10.0.0.7/16",\n]\n'
        '\n[[node]]\nname = "b"\n'
        '\n[[link]]\nends = [\n    "a",\n    "b",\n]\nloss = "5%"\n\n[link.backward]\nrate = "1.28gbit"\n'
    )


@functools.cache
def validator() -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(json_schema())


def test_the_schema_is_valid() -> None:
    jsonschema.Draft202012Validator.check_schema(json_schema())


@pytest.mark.parametrize("name", [name for name, _ in topologies()])
def test_the_schema_accepts_a_shipped_topology(name: str) -> None:
    text = resources.files("topologies").joinpath(f"{name}.toml").read_text(encoding="utf-8")
    validator().validate(tomllib.loads(text))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "node = []\nnodes = 3",
        '[[node]]\nname = "a b"',
        '[[node]]\nname = "a"\n[[link]]\nends = ["a"]',
        '[[node]]\nname = "a"\n[defaults.link]\ndelay = "10"',
        '[[node]]\nname = "a"\n[defaults.link]\ndelay = 10',
        '[[node]]\nname = "a"\n[defaults.link]\nrate = "10us"',
        '[[node]]\nname = "a"\n[defaults.link]\nloss = 1.5',
        '[generate]\nshape = "star"',
        '[generate]\nshape = "start"\nnodes = 3',
    ],
)
def test_the_schema_rejects_errors_that_an_editor_can_mark(text: str) -> None:
    assert not validator().is_valid(tomllib.loads(text))


def test_the_schema_describes_every_key() -> None:
    schema = json_schema()
    for name, definition in schema["$defs"].items():
        for key, field in definition["properties"].items():
            assert "description" in field, f"{name}.{key}"
