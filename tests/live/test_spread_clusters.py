"""Clusters over three machines: placement, links between machines, and no leftovers.

The underlay has a round trip of 4 ms, so that tests can distinguish it from the clusters' delays. TESTBED_LONG=1 also
places 300 nodes and disconnects a machine during a command.
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
from tests.live.testbed_command import TESTBED, assert_error

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
    """Yield the machines; assert that nothing is left on them."""
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
    constraints = ("--pin", "s1=b", "--exclude", "n1=b")
    plan = document(clean, "up", "lab.toml", "star-6", *constraints, "--dry-run")
    placement, cut = plan["machines"], plan["cut"]
    assert isinstance(placement, dict)
    assert isinstance(cut, dict)
    assert sorted(name for names in placement.values() for name in names) == ["n1", "n2", "n3", "n4", "n5", "n6", "s1"]
    assert "s1" in placement["b"]
    assert "n1" not in placement["b"]
    assert len(cut["links"]) == 6 - (len(placement["b"]) - 1)
    assert plan["operations"] == {}


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


ECHO_COUNT = 15 if LONG else 5
ADDED = 84
"""Milliseconds of a round trip to which the underlay's delay has been added."""
MEASURE_ROUND_TRIPS = f"""
import socket
from testbed.kernel.echo import round_trips
times = []
while len(times) < 100 and min(times, default={ADDED}e6) >= {ADDED}e6:  # on a busy machine many are late
    times += round_trips(socket.gethostbyname("n1"), socket.gethostbyname("n6"), {ECHO_COUNT}, 10)
print(times)
"""


def test_nodes_on_three_machines_communicate_and_run_commands(clean: Lab) -> None:
    clean.testbed("machines", "gc", "lab.toml")  # killed runs of other tests leave temporary directories
    placement = document(clean, "up", "lab.toml", "slow.toml", "--pin", "n6=a", "--pin", "n1=c")["machines"]
    assert isinstance(placement, dict)
    (machine_of_n1,) = (name for name, names in placement.items() if "n1" in names)
    (machine_of_n6,) = (name for name, names in placement.items() if "n6" in names)
    assert machine_of_n1 != machine_of_n6
    try:
        output = execute(clean, "slow", "n1", sys.executable, "-c", MEASURE_ROUND_TRIPS)
        times = [nanoseconds / 1e6 for nanoseconds in json.loads(output)]
        assert len(times) >= ECHO_COUNT
        # Four directions of 20 ms, including the underlay's delay; added on top, it would be in every round trip.
        assert 79.9 <= min(times) < ADDED
        with clean.at_desk(
            TESTBED, "machines", "exec", "lab.toml", "slow", "n6", "--", sys.executable, "-c", RECEIVER
        ) as receiver:
            execute(clean, "slow", "n1", sys.executable, "-c", SENDER)
            assert receiver.communicate(timeout=60)[0] == "True\n"
        failed = clean.testbed(
            "machines", "exec", "lab.toml", "slow", "n1", "--", "sh", "-c", "printf a; echo b >&2; exit 3"
        )
        assert (failed.returncode, failed.stdout, failed.stderr) == (3, "a", "b\n")
        (clean.folder / "unreachable.toml").write_text(clean.file(**{machine_of_n6: {"port": 2222}}))
        reachable = clean.testbed("machines", "exec", "unreachable.toml", "slow", "n1", "--", "echo", "here")
        assert (reachable.returncode, reachable.stdout) == (0, "here\n"), reachable.stderr
        unreachable = clean.testbed("machines", "exec", "unreachable.toml", "slow", "n6", "--", "true")
        assert_error(unreachable, 1, f"machine {machine_of_n6} (", "Connection refused")
        again = document(clean, "up", "lab.toml", "slow.toml")
        assert (again["operations"], again["changed"]) == (dict.fromkeys(NAMES, 0), [])
        assert clean.on(machine_of_n6, TESTBED, "down", "slow").returncode == 0
        remaining = document(clean, "status", "lab.toml", "slow")["machines"]
        assert isinstance(remaining, dict)
        assert {*remaining} == {*placement} - {machine_of_n6}
        assert clean.testbed("machines", "gc", "lab.toml").stdout == "nothing to collect\n"
    finally:
        down = clean.testbed("machines", "down", "lab.toml", "slow")
    assert down.returncode == 0, down.stderr
    assert_error(clean.testbed("machines", "down", "lab.toml", "slow"), 4, "no machine has a cluster slow")


def test_a_delay_below_the_underlays_is_rejected_with_both_values(clean: Lab) -> None:
    done = clean.testbed("machines", "up", "two.toml", "fast.toml")
    assert_error(done, 3, "a delay of 1ms is less than the ", " that the network between machines a and ")


def test_an_underlay_with_too_small_an_mtu_is_rejected_before_any_change(clean: Lab) -> None:
    (clean.folder / "jumbo.toml").write_text(STAR.format(name="jumbo", mtu=9000, delay="20ms", nodes=6))
    done = clean.testbed("machines", "up", "two.toml", "jumbo.toml")
    assert_error(done, 3, "its underlay has the MTU 9,000, and frames of 9,000 bytes with VXLAN's 50 need 9,050")


def test_a_cluster_with_a_vxlan_id_in_use_is_rejected_without_effect_on_the_first(clean: Lab) -> None:
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
    """Return two cluster names for which this link has the same VXLAN id."""
    names_by_id: dict[int, str] = {}
    for number in itertools.count():
        name = f"x{number}"
        vni = vxlan_ids(name, (link,))[link]
        if vni in names_by_id:
            return names_by_id[vni], name
        names_by_id[vni] = name
    raise AssertionError


def test_a_vxlan_id_in_use_on_one_machine_rolls_back_all_machines(clean: Lab) -> None:
    plan = document(clean, "up", "two.toml", "slow.toml", "--dry-run")
    cut = plan["cut"]
    assert isinstance(cut, dict)
    vxlan_id = vxlan_ids("slow", tuple(cut["links"]))["n6:eth0--s1:6"]
    # The machine is a node of the underlay cluster.
    node = clean.cluster[clean.nodes["c"]]
    vxlan = ["type", "vxlan", "id", str(vxlan_id), "remote", clean.address("b"), "dstport", "4789"]
    node.run(["ip", "link", "add", "foreign", *vxlan])
    try:
        done = clean.testbed("machines", "up", "two.toml", "slow.toml")
        assert_error(
            done,
            5,
            "machine c: make tunnel n6:eth0--s1:6",
            f"the VXLAN id {vxlan_id}",
            "another VXLAN interface of this machine",
        )
    finally:
        node.run(["ip", "link", "delete", "foreign"])


def test_an_unreachable_machine_is_reported_before_any_change(clean: Lab) -> None:
    (clean.folder / "unreachable.toml").write_text(clean.file(c={"port": 2222}))
    assert_error(
        clean.testbed("machines", "up", "unreachable.toml", "slow.toml"), 1, "machine c (", "Connection refused"
    )


def test_a_pin_to_an_unknown_machine_is_reported_before_the_first_login(machines: Lab) -> None:
    (machines.folder / "nobody.toml").write_text(machines.file(a={"port": 2222}, b={"port": 2222}, c={"port": 2222}))
    done = machines.testbed("machines", "up", "nobody.toml", "slow.toml", "--pin", "n1=d")
    assert_error(done, 4, "the file has no machine 'd'")


MANY = 300
MANY_NODES = f'name = "many"\ngenerate = {{ shape = "star", nodes = {MANY} }}\n'


if LONG:

    def test_300_nodes_on_three_machines_communicate_have_faults_and_leave_nothing(clean: Lab) -> None:
        (clean.folder / "many.toml").write_text(MANY_NODES)
        placement = document(clean, "up", "lab.toml", "many.toml")["machines"]
        assert isinstance(placement, dict)
        try:
            assert {machine: len(clean.namespaces(machine)) for machine in NAMES} == {
                machine: sum(name != "s1" for name in names) + 1 for machine, names in placement.items()
            }
            assert min(map(len, placement.values())) >= MANY // 4
            status = document(clean, "status", "lab.toml", "many")["machines"]
            assert isinstance(status, dict)
            assert sum(node["exists"] for part in status.values() for node in part["nodes"]) == MANY
            assert all(link["exists"] and link["up"] for part in status.values() for link in part["links"])
            first, *others = (next(name for name in names if name != "s1") for names in placement.values())
            for peer in others:
                execute(clean, "many", first, "ping", "-c1", "-W10", peer)
            document(clean, "inject", "lab.toml", "many", "all", "--loss", "1%")
            assert document(clean, "heal", "lab.toml", "many")["healed"]
        finally:
            down = clean.testbed("machines", "down", "lab.toml", "many")
        assert down.returncode == 0, down.stderr


SLEEP = "import time; time.sleep(1000)"


if LONG:  # takes the worker's silence time-out of 5 s

    def test_a_disconnected_machine_is_reported_and_ends_its_programs(clean: Lab) -> None:
        assert clean.testbed("machines", "up", "two.toml", "slow.toml").returncode == 0
        try:
            command = ("machines", "exec", "two.toml", "slow", "n6", "--", sys.executable, "-c", SLEEP)
            with clean.at_desk(TESTBED, *command) as command_process:
                eventually(lambda: any("time.sleep" in line for line in clean.programs("c")), "the program runs")
                with clean.cluster.cut(clean.nodes["c"]):
                    start = time.monotonic()
                    _, stderr = command_process.communicate(timeout=30)
                    assert time.monotonic() - start < 5, "seconds until the disconnection is reported"
                    assert command_process.returncode == 1
                    assert stderr.startswith("testbed: machine c: the connection to its worker has ended: ")
                    eventually(
                        lambda: not any("time.sleep" in line for line in clean.programs("c")), "the program has ended"
                    )
        finally:
            down = clean.testbed("machines", "down", "two.toml", "slow")
        assert down.returncode == 0, down.stderr
