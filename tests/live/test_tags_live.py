"""Tags on a running cluster: display, selection of links and nodes, and changes without operations."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from testbed import Cluster, Scenario
from testbed.cli.documents import schema_of
from testbed.controller.runs.command_runs import run_commands
from testbed.spec.fault_models import Pause
from testbed.spec.selection import SELECTOR
from tests.live.testbed_command import assert_error
from tests.live.testbed_command import testbed as command

pytestmark = [pytest.mark.requires("root", "ping"), pytest.mark.usefixtures("machine")]

RACKS = """
[generate]
shape = "star"
nodes = 4
[tags]
rack1 = ["n1", "n2"]
rack2 = ["n3", "n4"]
client = ["n1"]
uplink = ["n4--s1"]
"""


def document(*arguments: str) -> Any:
    completed = command(*arguments, "--json")
    assert completed.returncode == 0, completed.stderr
    return json.loads(completed.stdout)


def is_reachable(source: str, target: str, timeout: int = 10) -> bool:
    """Return whether one of a few pings is answered within `timeout` seconds. The first may fail with the neighbour entry
    of an earlier lost ARP request."""
    return command("exec", source, "--", "ping", "-c4", "-i0.5", f"-W{timeout}", target).returncode == 0


@pytest.fixture
def racks(tmp_path: Path, machine: object) -> Iterator[Path]:  # noqa: ARG001  (checks the machine's state at the end)
    """Bring the racks up; return their file."""
    path = tmp_path / "racks.toml"
    path.write_text(RACKS)
    assert command("up", str(path)).returncode == 0
    yield path
    command("down", "--all")


@pytest.mark.usefixtures("racks")
def test_status_shows_tags_as_text_and_as_json() -> None:
    shown = command("status").stdout
    assert "n1 @rack1 @client" in shown
    assert "s1:4 @uplink" in shown
    report = document("status")
    jsonschema.validate(report, schema_of("status"))
    (cluster,) = report["clusters"]
    assert {node["name"]: node["tags"] for node in cluster["nodes"]}["n1"] == ["rack1", "client"]
    assert [link["tags"] for link in cluster["links"]] == [[], [], [], ["uplink"]]


@pytest.mark.usefixtures("racks")
def test_faults_select_links_and_nodes_by_tags() -> None:
    injected = document("inject", "@rack1", "--loss", "100%", "--direction", "out")
    assert [link["name"][:2] for link in injected["links"]] == ["n1", "n2"]
    assert not is_reachable("n1", "n3", 1)
    assert document("heal")["healed"][0]["what"] == "loss 100% on @rack1 (out)"
    assert is_reachable("n1", "n3")
    assert [link["name"][:2] for link in document("link", "@uplink", "down")["links"]] == ["n4"]
    assert not is_reachable("n1", "n4", 1)
    document("link", "@uplink", "up")
    document("partition", "@rack1", "/", "@rack2")
    assert not is_reachable("n1", "n3", 1)
    assert is_reachable("n1", "n2")
    document("heal")
    loaded = document("load", "@rack1", "n3", "--rate", "1mbit")
    assert loaded["what"] == "load of 1mbit from n1, n2 to n3"
    document("load", "@rack2", "--cpu", "10%")
    (cluster,) = document("status")["clusters"]
    assert {node["name"]: len(node["programs"]) for node in cluster["nodes"]} == {"n1": 1, "n2": 1, "n3": 2, "n4": 1}
    document("heal")


@pytest.mark.usefixtures("racks")
def test_exec_accepts_a_tag_of_exactly_one_node() -> None:
    assert command("exec", "@client", "--", "hostname").stdout == "n1\n"
    assert_error(command("exec", "@rack1", "--", "true"), 4, "@rack1 selects 2 nodes (n1, n2): name one of them")
    assert_error(command("inject", "@rakc1", "--loss", "1%"), 4, "has the tag 'rakc1'; did you mean '@rack1'?")


def test_a_change_of_tags_alone_applies_without_an_operation(racks: Path) -> None:
    racks.write_text(RACKS.replace('client = ["n1"]', 'server = ["n3"]'))
    changed = document("up", str(racks))
    assert changed["operations"] == []
    assert command("exec", "@server", "--", "hostname").stdout == "n3\n"
    assert_error(command("exec", "@client", "--", "true"), 4, "has the tag 'client'")


def test_commands_and_scenarios_select_nodes_by_tags(tmp_path: Path) -> None:
    cluster = Cluster.star(3, tags={"worker": ["n2", "n3"]})
    scenario = Scenario(name="storm", faults=(Pause(on="@worker", pick=1, at=0, for_="100ms", every="200ms", to="1s"),))
    result = run_commands(cluster, [("@worker", "hostname; sleep 1.6"), ("n1", "true")], scenario=scenario, seed=3,
                          output=tmp_path / "run")  # fmt: skip
    assert [(command.node, command.code) for command in result.commands] == [("n2", 0), ("n3", 0), ("n1", 0)]
    records = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    paused = [record["what"] for record in records if record["event"] == "fault begins"]
    assert len(paused) == 5
    assert set(paused) <= {"pause on n2", "pause on n3"}
    assert all(SELECTOR not in what for what in paused)
