"""Parts of the web view for given snapshots."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from testbed.cli.screen.panels import PANELS
from testbed.cli.web.page_parts import Choices, needs_agents, parts_of
from testbed.observe.live.snapshot import Absent, Link, Program, Snapshot, Switch
from tests.unit.cli.snapshots import star, two_nodes

LOSSY = "n2:eth0--s1:2"


def parts(snapshot: Snapshot | Absent, **choices: Any) -> dict[str, Any]:
    """Return the parts as the page reads them."""
    document: dict[str, Any] = json.loads(json.dumps(parts_of(snapshot, Choices(**choices))))
    return document


def test_the_header_has_the_totals_of_all_links() -> None:
    head = parts(two_nodes())["head"]
    assert (head["cluster"], head["summary"], head["age"]) == ("pair", "2 nodes, 1 switch, 2 links", "3 min 12 s")
    assert (head["drops"], head["dropping"], head["faults"]) == ("43", True, 1)
    assert head["carriers"] == ["relay 8%"]


def test_the_picture_has_every_element_and_link() -> None:
    picture = parts(two_nodes())["picture"]
    assert [name for name, *_ in picture["nodes"]] == ["n1", "n2"]
    assert [(name, kind) for name, _, _, kind in picture["switches"]] == [("s1", "ethernet")]
    assert [link[:3] for link in picture["links"]] == [["n1:eth0--s1:1", "n1", "s1"], [LOSSY, "n2", "s1"]]
    assert len({(x, y) for _, x, y, *_ in [*picture["nodes"], *picture["switches"]]}) == 3


def test_the_picture_has_room_for_a_link_that_passes_above_others() -> None:
    names = ["s1", "s2", "s3"]
    links = tuple(Link(f"{a}--{b}", f"{a}:1", f"{b}:2", "up", "direct") for a, b in (names[:2], names[1:], names[::2]))
    switches = tuple(Switch(name, "ethernet") for name in names)
    picture = parts(replace(two_nodes(), nodes=(), links=links, switches=switches))["picture"]
    _, y, _, height = picture["box"]
    middles = {row for _, _, row, *_ in picture["switches"]}
    assert middles == {0.0}
    assert y < -20
    assert y + height == 0


def test_the_picture_is_stable_while_the_cluster_does_not_change() -> None:
    first, later = two_nodes(), replace(two_nodes(), time=two_nodes().time + 10**9, age=193.0)
    assert parts(first)["picture"] == parts(later)["picture"]
    assert parts(first)["head"] != parts(later)["head"]


def test_a_link_has_load_drops_and_impairments_by_direction() -> None:
    healthy_link, lossy_link = parts(two_nodes())["links"]
    assert healthy_link["forward"] == {
        "bits": 1_180_000,
        "load": "1.18Mbit/s",
        "drops": "",
        "declared": "",
        "injected": "",
    }
    assert lossy_link["forward"] == {
        "bits": 9_744_000, "load": "9.74Mbit/s", "drops": "43", "declared": "delay 1ms", "injected": "loss 5%"
    }  # fmt: skip
    assert lossy_link["backward"]["injected"] == ""
    assert (lossy_link["state"], lossy_link["datapath"]) == ("up", "relay")


def test_a_node_shows_its_processor_time_programs_and_drops() -> None:
    first, second = parts(two_nodes())["nodes"]
    assert (first["cpu"], first["programs"], first["busiest"], first["dropping"]) == (0.42, 2, "iperf3", False)
    assert (second["programs"], second["dropping"]) == (0, True)


def test_tables_are_those_of_the_terminal() -> None:
    for panel in PANELS:
        table = parts(two_nodes(), panel=panel.name)["panel"]
        assert [column["title"] for column in table["columns"]] == [column.title for column in panel.columns]
        assert [row["cells"] for row in table["rows"]] == [list(row.cells) for row in panel.rows(two_nodes())]


def test_a_table_is_sorted_on_request() -> None:
    table = parts(star(3), panel="Nodes", sort=1)["panel"]
    assert (table["sort"], [row["key"] for row in table["rows"]]) == ("traffic", ["n3", "n2", "n1"])
    backwards = parts(star(3), panel="Nodes", sort=1, reverse=True)["panel"]
    assert [row["key"] for row in backwards["rows"]] == ["n1", "n2", "n3"]
    assert parts(star(3), panel="Nodes", sort=99)["panel"]["sort"] == PANELS[0].sorts[-1]
    assert parts(star(3), panel="Nodes", sort=-1)["panel"]["sort"] == ""
    assert parts(star(3), panel="no such")["panel"] is None


def test_the_details_of_a_node_are_its_nics_with_their_counters_and_its_programs() -> None:
    details = parts(two_nodes(), kind="node", name="n1")["details"]
    nics, programs = details["tables"]
    assert nics["rows"][0]["cells"][:2] == ["n1:eth0", "1,200"]
    assert [row["cells"] for row in programs["rows"]] == [
        ["iperf3", "4711", "42%", "5.05M"],
        ["sh", "4712", "0%", "879K"],
    ]
    assert ["tags", "@client"] in details["facts"]


def test_the_details_of_a_link_show_the_present_impairments_and_both_directions() -> None:
    details = parts(two_nodes(), kind="link", name=LOSSY)["details"]
    assert ["injected", "→ loss 5%"] in details["facts"]
    assert ["other fates", "→ 7 corrupted"] in details["facts"]
    assert len(details["tables"][0]["rows"]) == 2


def test_the_details_of_a_switch_are_its_links() -> None:
    details = parts(two_nodes(), kind="switch", name="s1")["details"]
    assert details["facts"] == [["kind", "ethernet"], ["links", "2"]]
    assert len(details["tables"][0]["rows"]) == 4


def test_a_removed_element_has_no_details() -> None:
    for kind in ("node", "link", "switch"):
        assert parts(two_nodes(), kind=kind, name="n9")["details"] is None


def test_without_a_cluster_the_only_part_is_the_reason() -> None:
    assert parts(Absent("pair has been taken down")) == {"absent": "pair has been taken down"}


def test_control_characters_of_a_programs_name_are_escaped() -> None:
    snapshot = two_nodes()
    renamed_node = replace(snapshot.nodes[0], programs=(Program(1, "\x1b[2J\u202e<b>", 1.0),))
    text = json.dumps(
        parts(replace(snapshot, nodes=(renamed_node, snapshot.nodes[1])), panel="Nodes", kind="node", name="n1")
    )
    assert "\\\\x1b[2J\\\\u202e<b>" in text
    assert "\\u202e" not in text.replace("\\\\u202e", "")


def test_agents_are_queried_only_where_their_counters_are_shown() -> None:
    assert needs_agents({"panel": "NICs"})
    assert needs_agents({"panel": "Nodes", "kind": "node", "name": "n1"})
    assert not needs_agents({"panel": "Nodes", "kind": "link", "name": LOSSY})
