"""Tags of nodes and links: declaration, validation, writing, and selection."""

from __future__ import annotations

import json
import tomllib

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.errors import DescriptionError, NotFoundError
from testbed.spec.layout_json import from_json, to_json
from testbed.spec.model import Description, Link, Node
from testbed.spec.resolver import resolve
from testbed.spec.selection import expand_tags, node_of, nodes_of
from testbed.spec.toml_writer import json_schema, to_toml
from tests.unit.spec.cluster_strategies import descriptions

TEXT = """
name = "racks"

[[node]]
name = "n1"
tags = ["client", "rack1"]

[[node]]
name = "n2"
tags = ["rack1"]

[[node]]
name = "n3"

[[switch]]
name = "s1"

[[link]]
ends = ["n1", "s1"]

[[link]]
ends = ["n2", "s1"]

[[link]]
ends = ["n3", "s1"]
tags = ["slow", "rack1"]
"""
RACKS = resolve(Description.from_toml(TEXT))


def description_problems(text: str) -> list[str]:
    with pytest.raises(DescriptionError) as caught:
        Description.from_toml(text)
    return [str(problem) for problem in caught.value.problems]


def test_nodes_and_links_have_their_declared_tags() -> None:
    assert [node.tags for node in RACKS.nodes] == [("client", "rack1"), ("rack1",), ()]
    assert [link.tags for link in RACKS.links] == [(), (), ("slow", "rack1")]
    built = Description(
        name="racks",
        nodes=[Node(name="n1", tags=["client", "rack1"]), Node(name="n2", tags=["rack1"]), Node(name="n3")],
        switches=Description.from_toml(TEXT).switches,
        links=[Link(ends=["n1", "s1"]), Link(ends=["n2", "s1"]), Link(ends=["n3", "s1"], tags=["slow", "rack1"])],
    )
    assert built == Description.from_toml(TEXT)


TAGS = st.lists(st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9_.-]{0,20}\Z"), max_size=3, unique=True).map(tuple)


@settings(deadline=None, max_examples=50)
@given(descriptions(), st.data())
def test_tags_are_written_to_toml_and_kept_in_the_state(description: Description, data: st.DataObject) -> None:
    nodes = [node.model_copy(update={"tags": data.draw(TAGS)}) for node in description.nodes]
    links = [link.model_copy(update={"tags": data.draw(TAGS)}) for link in description.links]
    tagged = description.model_copy(update={"nodes": tuple(nodes), "links": tuple(links)})
    assert Description.from_toml(to_toml(tagged)) == tagged
    layout = resolve(tagged)
    assert from_json(json.loads(json.dumps(to_json(layout)))) == layout
    assert [node.tags for node in layout.nodes] == [node.tags for node in nodes]


def test_an_invalid_tag_is_rejected_at_its_path() -> None:
    node = 'name = "x"\n[[node]]\nname = "n1"\ntags = '
    assert description_problems(f'{node}["rack 1"]') == [
        "node[1] (n1).tags[1]: found 'rack 1', expected a tag of 1 to 63 letters, digits, '-', '_' and '.' that begins with "
        "a letter or digit — did you mean 'rack-1'?"
    ]
    assert "did you mean 'rack1'?" in description_problems(f'{node}["@rack1"]')[0]
    assert description_problems(f'{node}["a", "b", "a"]') == [
        "node[1] (n1).tags: found ['a', 'b', 'a'], expected every tag once: 'a' occurs twice"
    ]
    assert description_problems(f'{node}"rack1"') == ["node[1] (n1).tags: found 'rack1', expected a list"]
    assert "did you mean 'tags'?" in description_problems('name = "x"\n[[node]]\nname = "n1"\ntag = ["a"]')[0]


def test_the_table_of_tags_applies_to_generated_and_listed_elements() -> None:
    text = """
    [generate]
    shape = "dumbbell"
    left = 2
    right = 2
    [tags]
    client = ["n1", "n2"]
    uplink = ["s2--s1"]
    both = ["n1", "n5--s1"]
    [[node]]
    name = "n5"
    tags = ["own"]
    [[link]]
    ends = ["n5", "s1"]
    """
    layout = resolve(Description.from_toml(text))
    assert {node.name: node.tags for node in layout.nodes if node.tags} == {
        "n1": ("client", "both"), "n2": ("client",), "n5": ("own",)
    }  # fmt: skip
    assert [link.tags for link in layout.links if link.tags] == [("uplink",), ("both",)]
    description = Description.from_toml(text)
    assert Description.from_toml(to_toml(description)) == description


def test_builders_accept_the_table_of_tags() -> None:
    built = Description.star(3, name="x", loss="1%", tags={"client": ["n1", "n2"], "slow": ["n3--s1"]})
    text = """
    name = "x"
    [generate]
    shape = "star"
    nodes = 3
    [defaults.link]
    loss = "1%"
    [tags]
    client = ["n1", "n2"]
    slow = ["s1--n3"]
    """
    assert built == Description.from_toml(text)
    with pytest.raises(
        DescriptionError, match=r"tags.client\[1\]: found 'n11', expected a node or link .* — did you mean 'n1'"
    ):
        Description.star(3, tags={"client": ["n11"]})


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ('[tags]\nclient = ["n9"]', "tags.client[1]: found 'n9', expected a node or link of this cluster"),
        ('[tags]\nclient = ["s1"]', "tags.client[1]: found 's1', expected a node or link of this cluster"),
        ('[tags]\nclient = "n1"', "tags.client: found 'n1', expected a list of nodes and links"),
        ('[tags]\n"a b" = ["n1"]', "tags: found 'a b', expected a tag of 1 to 63 letters"),
    ],
)
def test_errors_in_the_table_are_reported(table: str, message: str) -> None:
    (problem,) = description_problems(f'[generate]\nshape = "star"\nnodes = 3\n{table}')
    assert problem.startswith(message)


def test_the_schema_validates_tags() -> None:
    schema = json_schema()
    jsonschema.validate(tomllib.loads(TEXT), schema)
    jsonschema.validate(tomllib.loads('[generate]\nshape = "star"\nnodes = 3\n[tags]\na = ["n1"]'), schema)
    for text in ('[[node]]\nname = "n1"\ntags = ["@a"]', '[[node]]\nname = "n1"\n[tags]\n"a b" = []'):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(tomllib.loads(text), schema)


# Selection


def test_a_tag_selects_the_nodes_and_links_that_have_it() -> None:
    assert expand_tags(RACKS, ["@rack1"]) == ["n1", "n2", RACKS.links[2].name]
    assert expand_tags(RACKS, ["n2", "@rack1"]) == ["n2", "n1", RACKS.links[2].name]
    assert nodes_of(RACKS, ["@rack1"]) == ["n1", "n2"]
    assert nodes_of(RACKS, ["n3", "@client"]) == ["n1", "n3"]
    assert nodes_of(RACKS, ["all"]) == ["n1", "n2", "n3"]


def test_a_tag_in_place_of_a_node_must_select_one_node() -> None:
    assert node_of(RACKS, "@client") == "n1"
    assert node_of(RACKS, "n3") == "n3"
    with pytest.raises(NotFoundError, match=r"@rack1 selects 2 nodes \(n1, n2\): name one of them"):
        node_of(RACKS, "@rack1")


def test_an_unknown_tag_is_rejected_with_the_nearest_or_all_tags() -> None:
    with pytest.raises(NotFoundError, match="nothing in cluster racks has the tag 'rakc1'; did you mean '@rack1'"):
        nodes_of(RACKS, ["@rakc1"])
    with pytest.raises(NotFoundError, match="has the tag 'zzz'; there are client, rack1, slow"):
        expand_tags(RACKS, ["@zzz"])
    with pytest.raises(NotFoundError, match="has the tag 'a': it has no tags"):
        expand_tags(resolve(Description.star(2)), ["@a"])
    with pytest.raises(NotFoundError, match="no node of cluster racks has the tag 'slow': only links have it"):
        nodes_of(RACKS, ["@slow"])
