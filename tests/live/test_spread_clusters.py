"""Clusters spread over three machines: placement, links between machines, and no leftovers.

The machines' own network has 4 ms of round trip, so that it can be told from the delays of the clusters on it.
TESTBED_LONG=1 also spreads 300 nodes, and cuts a machine off from a command.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections.abc import Iterator

import jsonschema
import pytest

from testbed import Cluster
from testbed.cli.documents import schema_of
from testbed.errors import ConflictError
from testbed.machines import spread
from testbed.machines.node_placement import Constraints
from testbed.machines.parts import vxlan_ids
from testbed.machines.remote_workers import call_each
from testbed.spec.resolver import resolve
from tests.live.machine_state import eventually
from tests.live.machines_lab import NAMES, Lab, lab
from tests.live.testbed_command import TESTBED, refused

pytestmark = [pytest.mark.requires("root", "ip", "ssh", "sshd")]

LONG = bool(os.environ.get("TESTBED_LONG"))
STAR = 'name = "{name}"\ndefaults = {{ mtu = {mtu}, link = {{ delay = "{delay}" }} }}\n' + (
    'generate = {{ shape = "star", nodes = {nodes} }}\n'
)


@pytest.fixture(scope="module")
def machines(_sandbox: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp("lab")
    with lab(folder, Cluster.from_toml(STAR.format(name="underlay", mtu=9000, delay="1ms", nodes=4))) as running_lab:
        for name, mtu, delay in (("slow", 1500, "20ms"), ("fast", 1500, "1ms")):
            (folder / f"{name}.toml").write_text(STAR.format(name=name, mtu=mtu, delay=delay, nodes=6))
        (folder / "two.toml").write_text(running_lab.file("ac"))
        yield running_lab


@pytest.fixture
def clean(machines: Lab) -> Iterator[Lab]:
    """The machines, on which nothing is left at the end."""
    yield machines
    for name in NAMES:
        eventually(lambda name=name: machines.programs(name) == [], f"no process is left on machine {name}")  # type: ignore[misc]
        assert machines.namespaces(name) == [], name


def document(machines: Lab, *arguments: str) -> dict[str, object]:
    done = machines.testbed("machines", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    json_document: dict[str, object] = json.loads(done.stdout)
    jsonschema.validate(json_document, schema_of(str(json_document["kind"])))
    return json_document


def execute(machines: Lab, cluster: str, node: str, *command: str) -> str:
    done = machines.testbed("machines", "exec", "lab.toml", cluster, node, "--", *command)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_dry_run_prints_placement_and_cut_and_changes_nothing(clean: Lab) -> None:
    wishes = ("--pin", "s1=b", "--exclude", "n1=b")
    actual = document(clean, "up", "lab.toml", "star-6", *wishes, "--dry-run")
    placed, cut = actual["machines"], actual["cut"]
    assert isinstance(placed, dict)
    assert isinstance(cut, dict)
    assert sorted(name for names in placed.values() for name in names) == ["n1", "n2", "n3", "n4", "n5", "n6", "s1"]
    assert "s1" in placed["b"]
    assert "n1" not in placed["b"]
    assert len(cut["links"]) == 6 - (len(placed["b"]) - 1)
    assert actual["operations"] == {}


RECEIVER = """
import socket
listener = socket.create_server(("", 7000))
connection, _ = listener.accept()
received = b"".join(iter(lambda: connection.recv(65536), b""))
print(received == bytes(range(256)) * 4096)
"""
SENDER = """
import socket, time
for _ in range(300):
    try:
        connection = socket.create_connection(("n6", 7000))
        break
    except OSError:
        time.sleep(0.1)
connection.sendall(bytes(range(256)) * 4096)
"""


ECHOES = 15 if LONG else 5
ECHO = f"""
import socket
from testbed.kernel.echo import round_trips
print(round_trips(socket.gethostbyname("n1"), socket.gethostbyname("n6"), {ECHOES}, 10))
"""


def test_nodes_on_three_machines_are_one_cluster(clean: Lab) -> None:
    clean.testbed("machines", "gc", "lab.toml")  # runs that other tests have killed leave temporary directories
    placed = document(clean, "up", "lab.toml", "slow.toml", "--pin", "n6=a", "--pin", "n1=c")["machines"]
    assert isinstance(placed, dict)
    (of_n1,) = (name for name, names in placed.items() if "n1" in names)
    (of_n6,) = (name for name, names in placed.items() if "n6" in names)
    assert of_n1 != of_n6
    try:
        echoed = execute(clean, "slow", "n1", sys.executable, "-c", ECHO)
        times = [nanoseconds / 1e6 for nanoseconds in json.loads(echoed)]
        assert len(times) == ECHOES
        # Four directions of 20 ms, in which the underlay's own are contained; with them on top it would be 84 ms.
        assert 79.9 <= min(times) < 84
        with clean.at_desk(
            TESTBED, "machines", "exec", "lab.toml", "slow", "n6", "--", sys.executable, "-c", RECEIVER
        ) as to:
            execute(clean, "slow", "n1", sys.executable, "-c", SENDER)
            assert to.communicate(timeout=60)[0] == "True\n"
        failed = clean.testbed(
            "machines", "exec", "lab.toml", "slow", "n1", "--", "sh", "-c", "printf a; echo b >&2; exit 3"
        )
        assert (failed.returncode, failed.stdout, failed.stderr) == (3, "a", "b\n")
        (clean.folder / "partly.toml").write_text(clean.file(**{of_n6: {"port": 2222}}))
        reached = clean.testbed("machines", "exec", "partly.toml", "slow", "n1", "--", "echo", "here")
        assert (reached.returncode, reached.stdout) == (0, "here\n"), reached.stderr
        lost = clean.testbed("machines", "exec", "partly.toml", "slow", "n6", "--", "true")
        refused(lost, 1, f"machine {of_n6} (", "Connection refused")
        again = document(clean, "up", "lab.toml", "slow.toml")
        assert (again["operations"], again["changed"]) == (dict.fromkeys(NAMES, 0), [])
        assert clean.on(of_n6, TESTBED, "down", "slow").returncode == 0
        left = document(clean, "status", "lab.toml", "slow")["machines"]
        assert isinstance(left, dict)
        assert {*left} == {*placed} - {of_n6}
        assert clean.testbed("machines", "gc", "lab.toml").stdout == "nothing to collect\n"
    finally:
        down = clean.testbed("machines", "down", "lab.toml", "slow")
    assert down.returncode == 0, down.stderr
    refused(clean.testbed("machines", "down", "lab.toml", "slow"), 4, "no machine has a cluster slow")


def test_a_delay_below_the_underlays_is_refused_with_the_figure(clean: Lab) -> None:
    done = clean.testbed("machines", "up", "two.toml", "fast.toml")
    refused(done, 3, "a delay of 1ms is less than the ", " that the network between machines a and ")


def test_an_underlay_with_too_small_an_mtu_prevents_all_changes(clean: Lab) -> None:
    (clean.folder / "jumbo.toml").write_text(STAR.format(name="jumbo", mtu=9000, delay="20ms", nodes=6))
    done = clean.testbed("machines", "up", "two.toml", "jumbo.toml")
    refused(done, 3, "its underlay has the MTU 9,000, and frames of 9,000 bytes with VXLAN's 50 need 9,050")


def test_a_second_cluster_with_a_vxlan_id_of_the_first_is_refused_and_leaves_the_first(clean: Lab) -> None:
    layout = resolve(Cluster.star(2))
    pins = Constraints({"n1": "a", "s1": "a", "n2": "c"})
    first, second = names_with_one_id("n2:eth0--s1:2")
    with clean.workers("two.toml") as running, spread.brought_up(running, layout, first, pins, "here"):
        plan = spread.plan_spread(running, layout, second, pins)
        with pytest.raises(ConflictError, match=r"(?s)^machine a: make tunnel .*the VXLAN id \d+ .*another VXLAN"):
            spread.up(running, plan, second, "here", "auto")
        assert call_each(running, "clusters") == {"a": [first], "c": [first]}
        address = layout.nodes[1].address
        assert spread.execute(running, first, "n1", ["ping", "-c1", "-W10", address])[0] == 0


def names_with_one_id(link: str) -> tuple[str, str]:
    """Two names of clusters that give this link the same VXLAN id."""
    found: dict[int, str] = {}
    for number in itertools.count():
        name = f"x{number}"
        vni = vxlan_ids(name, (link,))[link]
        if vni in found:
            return found[vni], name
        found[vni] = name
    raise AssertionError


def test_an_id_that_is_taken_on_one_machine_leaves_nothing_on_any(clean: Lab) -> None:
    actual = document(clean, "up", "two.toml", "slow.toml", "--dry-run")
    cut = actual["cut"]
    assert isinstance(cut, dict)
    taken = vxlan_ids("slow", tuple(cut["links"]))["n6:eth0--s1:6"]
    # The machine's own namespace is the node of the underlay.
    node = clean.cluster[clean.nodes["c"]]
    vxlan = ["type", "vxlan", "id", str(taken), "remote", clean.address("b"), "dstport", "4789"]
    node.run(["ip", "link", "add", "theirs", *vxlan])
    try:
        done = clean.testbed("machines", "up", "two.toml", "slow.toml")
        refused(
            done, 5, "machine c: make tunnel n6:eth0--s1:6", f"the VXLAN id {taken}", "another VXLAN of this machine"
        )
    finally:
        node.run(["ip", "link", "delete", "theirs"])


def test_an_unreachable_machine_prevents_all_changes(clean: Lab) -> None:
    (clean.folder / "partly.toml").write_text(clean.file(c={"port": 2222}))
    refused(clean.testbed("machines", "up", "partly.toml", "slow.toml"), 1, "machine c (", "Connection refused")


def test_a_pin_to_an_unknown_machine_is_reported_before_the_first_login(machines: Lab) -> None:
    (machines.folder / "nobody.toml").write_text(machines.file(a={"port": 2222}, b={"port": 2222}, c={"port": 2222}))
    done = machines.testbed("machines", "up", "nobody.toml", "slow.toml", "--pin", "n1=d")
    refused(done, 4, "the file has no machine 'd'")


MANY = 300
MANY_NODES = f'name = "many"\ngenerate = {{ shape = "star", nodes = {MANY} }}\n'


if LONG:

    def test_300_nodes_on_three_machines_reach_each_other_have_faults_and_leave_nothing(clean: Lab) -> None:
        (clean.folder / "many.toml").write_text(MANY_NODES)
        placed = document(clean, "up", "lab.toml", "many.toml")["machines"]
        assert isinstance(placed, dict)
        try:
            assert {machine: len(clean.namespaces(machine)) for machine in NAMES} == {
                machine: sum(name != "s1" for name in names) + 1 for machine, names in placed.items()
            }
            assert min(map(len, placed.values())) >= MANY // 4
            status = document(clean, "status", "lab.toml", "many")["machines"]
            assert isinstance(status, dict)
            assert sum(node["exists"] for part in status.values() for node in part["nodes"]) == MANY
            assert all(link["there"] and link["up"] for part in status.values() for link in part["links"])
            first, *others = (next(name for name in names if name != "s1") for names in placed.values())
            for other in others:
                execute(clean, "many", first, "ping", "-c1", "-W10", other)
            document(clean, "inject", "lab.toml", "many", "all", "--loss", "1%")
            assert document(clean, "heal", "lab.toml", "many")["healed"]
        finally:
            down = clean.testbed("machines", "down", "lab.toml", "many")
        assert down.returncode == 0, down.stderr


WAITING = "import time; time.sleep(1000)"


if LONG:  # the worker's patience is 5 s

    def test_a_machine_that_is_cut_off_is_detected_and_ends_its_part_of_the_run(clean: Lab) -> None:
        assert clean.testbed("machines", "up", "two.toml", "slow.toml").returncode == 0
        try:
            command = ("machines", "exec", "two.toml", "slow", "n6", "--", sys.executable, "-c", WAITING)
            with clean.at_desk(TESTBED, *command) as waiting:
                eventually(lambda: any("time.sleep" in line for line in clean.programs("c")), "the program runs")
                with clean.cluster.cut(clean.nodes["c"]):
                    start = time.monotonic()
                    _, stderr = waiting.communicate(timeout=30)
                    assert time.monotonic() - start < 5, "seconds until it is noticed"
                    assert waiting.returncode == 1
                    assert stderr.startswith("testbed: machine c: the connection to its worker has ended: ")
                    eventually(
                        lambda: not any("time.sleep" in line for line in clean.programs("c")), "the program has ended"
                    )
        finally:
            down = clean.testbed("machines", "down", "two.toml", "slow")
        assert down.returncode == 0, down.stderr
