"""Cells between nodes of a live ATM network, through the relay: circuits, loss, counters, and rejected commands."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed.cluster.records.state import Store
from testbed.cluster.services import relay_client
from tests.live.testbed_command import testbed

pytestmark = [pytest.mark.requires("root", "ping"), pytest.mark.usefixtures("machine")]

DESCRIPTION = """
name = "cells"
[defaults.link]
rate = "140mbit"
overhead = 2
[[node]]
name = "n1"
[[node]]
name = "n2"
[[switch]]
name = "s1"
kind = "atm"
[[switch]]
name = "s2"
kind = "atm"
[[link]]
ends = ["n1", "s1"]
[[link]]
ends = ["s1", "s2"]
[[link]]
ends = ["n2", "s2"]
"""

SENDER = """
import socket, sys
from protocols.atm.cell import Circuit, circuit, header
wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
wire.bind(("eth0", 0))
head = b"\\xff" * 6 + wire.getsockname()[4] + b"\\x88\\x84"
circuits = [circuit(0, 1, 2)] * 20 + [Circuit(0, 5)] + [circuit(0, 1, 2)]
for number, destination in enumerate(circuits):
    wire.send(head + header(destination) + bytes([number]) * 48)
"""

RECEIVER = """
import socket
wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x8884))
wire.bind(("eth0", 0x8884))
print("ready", flush=True)
numbers = []
while not numbers or numbers[-1] != 21:
    numbers.append(wire.recv(2000)[-1])
print(numbers)
"""


@pytest.fixture
def cells(tmp_path: Path) -> Iterator[Path]:
    description = tmp_path / "cells.toml"
    description.write_text(DESCRIPTION)
    up = testbed("up", str(description))
    assert up.returncode == 0, up.stderr
    yield tmp_path
    down = testbed("down", "--all")
    assert down.returncode == 0, down.stderr


def send(folder: Path) -> None:
    """Send 21 cells from n1 to n2 and one to an unknown circuit."""
    (folder / "send.py").write_text(SENDER)
    root = str(Path(__file__).parents[2])
    sent = testbed("exec", "n1", "--", "env", f"PYTHONPATH={root}", "python3", f"{folder}/send.py")
    assert sent.returncode == 0, sent.stderr


def exchange(folder: Path) -> list[int]:
    """Send 21 cells to n2 and one to an unknown circuit; return the numbers that arrive at n2."""
    (folder / "receive.py").write_text(RECEIVER)
    root = str(Path(__file__).parents[2])
    ready = folder / "ready"
    program = (
        f"PYTHONPATH={root} python3 {folder}/receive.py > {ready} & "
        f"until grep -q ready {ready}; do sleep 0.02; done; wait $!"
    )
    result = testbed("exec", "n2", "--", "sh", "-c", f"({program}; touch {folder}/ended) >/dev/null 2>&1 &")
    assert result.returncode == 0, result.stderr
    waited = testbed("exec", "n1", "--", "sh", "-c", f"until grep -q ready {ready}; do sleep 0.02; done")
    assert waited.returncode == 0, waited.stderr
    send(folder)
    ended = testbed(
        "exec", "n2", "--", "timeout", "20", "sh", "-c", f"until test -e {folder}/ended; do sleep 0.02; done"
    )
    assert ended.returncode == 0, ready.read_text()
    numbers: list[int] = json.loads(ready.read_text().splitlines()[1])
    ready.unlink()
    (folder / "ended").unlink()
    return numbers


def test_cells_follow_their_circuit_through_two_switches_and_rules_can_match_it(cells: Path) -> None:
    assert exchange(cells) == [*range(20), 21], "the cell of an unknown circuit is dropped"

    injected = testbed("inject", "n1--s1", "--rule", "drop atm.vci == 33 and nth(3)", "--direction", "n1-s1")
    assert injected.returncode == 0, injected.stderr
    assert exchange(cells) == [0, 1, *range(3, 20), 21]

    assert testbed("heal").returncode == 0
    assert exchange(cells) == [*range(20), 21]


def test_top_counts_the_cells_of_the_cable_between_switches_and_shows_a_rule_where_it_is_in_force(cells: Path) -> None:
    rule = "drop atm.vci == 33 and nth(3)"
    injected = testbed("inject", "s1--s2", "--rule", rule, "--direction", "s1-s2")
    assert injected.returncode == 0, injected.stderr
    assert exchange(cells) == [0, 1, *range(3, 20), 21]
    snapshot = json.loads(testbed("top", "--once", "--json", "--interval", "100ms").stdout)
    links = {link["name"]: link for link in snapshot["links"]}
    cable = links.pop("s1:2--s2:1")
    forward, backward = cable["forward"], cable["backward"]
    assert (forward["frames"], backward["frames"]) == (20, 0)
    assert forward["dropped"] == {"rule": 1}
    assert [direction["declared"] for direction in (forward, backward)] == ["rate 140mbit, overhead 2"] * 2
    assert (forward["injected"], backward["injected"]) == (f"rule {rule!r}", "")
    assert not any(link[direction]["injected"] for link in links.values() for direction in ("forward", "backward"))
    assert links["n1:eth0--s1:1"]["forward"]["frames"] >= 22


def test_programs_of_the_kernel_get_no_answer_through_a_switch(cells: Path) -> None:  # noqa: ARG001
    ping = testbed("exec", "n1", "--", "ping", "-c", "2", "-i", "0.2", "-W", "1", "n2")
    assert "0 received" in ping.stdout


@pytest.fixture
def fibre() -> Iterator[None]:
    up = testbed("up", "ssam-1995")
    assert up.returncode == 0, up.stderr
    yield
    down = testbed("down", "--all")
    assert down.returncode == 0, down.stderr


def test_a_fibre_between_two_nics_is_a_link_of_the_atm_network(fibre: None, tmp_path: Path) -> None:  # noqa: ARG001
    assert "0 received" in testbed("exec", "n1", "--", "ping", "-c", "2", "-i", "0.2", "-W", "1", "n2").stdout
    rule = "drop atm.vci == 33 and nth(3)"
    assert testbed("inject", "n1--n2", "--rule", rule, "--direction", "n1-n2").returncode == 0
    assert exchange(tmp_path) == [0, 1, *range(3, 22)], "there is no switch, and a NIC takes cells of any circuit"
    (cluster,) = json.loads(testbed("status", "--json").stdout)["clusters"]
    (link,) = cluster["links"]
    assert (link["datapath"], link["up"]) == ("relay", True)
    forward = shown_by_top()["forward"]
    assert (forward["dropped"], forward["injected"]) == ({"rule": 1}, f"rule {rule!r}")

    assert testbed("heal").returncode == 0
    assert testbed("partition", "n1", "/", "n2").returncode == 0
    send(tmp_path)
    assert shown_by_top()["forward"]["dropped"] == {"rule": 1 + 22}
    assert testbed("heal").returncode == 0
    assert exchange(tmp_path) == [*range(22)]

    assert testbed("link", "n1--n2", "down").returncode == 0
    (cluster,) = json.loads(testbed("status", "--json").stdout)["clusters"]
    assert not cluster["links"][0]["up"]
    delivered = shown_by_top()["backward"]["frames"], shown_by_top()["forward"]["frames"]
    send(tmp_path)
    assert (shown_by_top()["backward"]["frames"], shown_by_top()["forward"]["frames"]) == delivered
    assert testbed("link", "n1--n2", "up").returncode == 0
    assert exchange(tmp_path) == [*range(22)]


def shown_by_top() -> dict[str, Any]:
    (link,) = json.loads(testbed("top", "--once", "--json", "--interval", "100ms").stdout)["links"]
    shown: dict[str, Any] = link
    return shown


def test_a_check_of_a_fibre_measures_each_direction(fibre: None) -> None:  # noqa: ARG001
    assert testbed("inject", "n1--n2", "--loss", "30%", "--direction", "n1-n2").returncode == 0
    findings = json.loads(testbed("check", "--json", "--seconds", "3").stdout)["findings"]
    losses = {finding["direction"]: finding for finding in findings if finding["what"] == "loss"}
    low, high = losses["forward"]["interval"]
    assert low < 0.3 < high
    assert losses["backward"]["asked"] == 0


def test_a_fast_sender_fills_the_output_fifo_of_a_slow_fibre_and_loses_nothing(tmp_path: Path) -> None:
    """A cell takes a millisecond; queue_frames makes the FIFO shorter than the burst."""
    description = tmp_path / "slow.toml"
    description.write_text(
        'name = "slow"\n[[node]]\nname = "n1"\n[[node]]\nname = "n2"\n'
        '[[link]]\nends = ["n1", "n2"]\nkind = "atm"\nrate = "424kbit"\nqueue_frames = 4\n'
    )
    assert testbed("up", str(description)).returncode == 0
    try:
        assert exchange(tmp_path) == [*range(22)]
        state = Store().choose("slow")
        report = relay_client.report(Store(), state)
        assert report is not None
        (forward,) = [link["forward"] for link in report["links"].values()]
        assert forward["counters"]["blocked"] > 0
        assert 0 < forward["waited"] <= 22 - 5, "one is being sent, and four are in the FIFO"
    finally:
        assert testbed("down", "--all").returncode == 0


def test_protocols_and_load_without_cells_are_rejected_with_an_error_of_one_line(cells: Path) -> None:  # noqa: ARG001
    run = testbed("run", "cells", "pingpong")
    assert run.returncode == 3
    assert "node n1 is ATM, which forwards by cells: frames of this protocol have none" in run.stderr
    load = testbed("load", "n1", "n2", "--rate", "1mbit")
    assert load.returncode == 3
    assert "the kernel's datagrams have no cells" in load.stderr


def test_a_check_probes_the_links_with_cells_and_measures_the_injection(cells: Path) -> None:  # noqa: ARG001
    injected = testbed("inject", "n1--s1", "--loss", "30%", "--direction", "n1-s1")
    assert injected.returncode == 0, injected.stderr
    checked = json.loads(testbed("check", "n1--s1", "--json", "--seconds", "3").stdout)
    probed = [link for link in checked["findings"] if link["direction"] == "there and back"]
    by_name = {finding["what"]: finding for finding in probed}
    assert by_name["loss"]["asked"] == pytest.approx(0.3)
    low, high = by_name["loss"]["interval"]
    assert low < 0.3 < high
    assert "corrupt" not in by_name, "no probe has arrived with a bit error, so there is no finding"
