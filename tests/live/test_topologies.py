"""Clusters of all shapes: reachability, paths of frames, and the environment of programs in nodes."""

from __future__ import annotations

import array
import fcntl
import itertools
import os
import socket
import struct
import subprocess
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from testbed import Cluster
from testbed.cluster.plan.veth_wiring import Wiring
from testbed.cluster.records.state import Store
from testbed.cluster.running_cluster import RunningCluster
from testbed.errors import TestbedError, UnsupportedError
from testbed.kernel import cgroups, namespaces, rtnl_dump, syscalls
from testbed.spec.layout import Layout
from testbed.spec.model import Link, Nic, Node, Switch
from tests.live import node_sockets
from tests.live.iproute2 import ping, query, wire_path
from tests.live.machine_state import Machine

pytestmark = [pytest.mark.requires("root", "ip", "ping"), pytest.mark.usefixtures("machine")]

SHAPES = {
    "star": lambda: Cluster.star(5),
    "line": lambda: Cluster.line(4),
    "ring": lambda: Cluster.ring(5),
    "full mesh": lambda: Cluster.full_mesh(4),
    "fat tree": lambda: Cluster.fat_tree(4),
    "dumbbell": lambda: Cluster.dumbbell(2, 3),
    "back to back": lambda: Cluster.back_to_back(),
    "NOW with Ethernet switches": lambda: Cluster.now(kind="ethernet"),
}
CYCLIC = {name: SHAPES[name] for name in ("ring", "full mesh", "fat tree", "NOW with Ethernet switches")}
MAX_PAIRS = 12


def sample(layout: Layout) -> list[tuple[str, str]]:
    """Return all pairs of nodes of a small cluster, and a selection for a larger one."""
    pairs = list(itertools.combinations([node.name for node in layout.nodes], 2))
    return pairs[:: -(-len(pairs) // MAX_PAIRS)]


@pytest.mark.parametrize("make", SHAPES.values(), ids=SHAPES)
def test_nodes_reach_each_other_by_name(make: object) -> None:
    with make().up() as cluster:  # type: ignore[operator]
        for first, second in sample(cluster.state.layout):
            ping(cluster, first, second)


def two_nodes(datapath: str) -> Cluster:
    return Cluster(
        name="pair", nodes=[Node(name="n1"), Node(name="n2")], links=[Link(ends=["n1", "n2"], datapath=datapath)]
    )


def test_a_direct_link_is_one_veth_pair_between_the_nics() -> None:
    with two_nodes("direct").up() as cluster:
        ping(cluster, "n1", "n2")
        assert [entry["ifname"] for entry in query(wire_path(cluster.state), "ip", "link")] == ["lo"]


def test_a_link_between_nodes_has_two_veth_pairs_joined_in_the_wire_namespace() -> None:
    with two_nodes("auto").up() as cluster:
        ping(cluster, "n2", "n1")
        devices = {entry["ifname"] for entry in query(wire_path(cluster.state), "ip", "link")}
        assert devices == {"lo", "n1.eth0", "n2.eth0"}


# Paths of frames


@contextmanager
def wire_counters(cluster: RunningCluster) -> Iterator[object]:
    """Yield a function that returns the received and sent frames of each device in the wire namespace."""
    wire = namespaces.open_path(wire_path(cluster.state))

    def read() -> dict[str, tuple[int, int]]:
        interfaces = rtnl_dump.by_name(rtnl_dump.interfaces(wire.route))
        return {
            name: (interface.counters.rx_packets, interface.counters.tx_packets)
            for name, interface in interfaces.items()
            if interface.kind == "veth"
        }

    try:
        yield read
    finally:
        wire.close()


def path_length(layout: Layout, source: str, target: str) -> int:
    """Return the number of links on a shortest path."""
    neighbours: dict[str, list[str]] = {}
    for link in layout.links:
        neighbours.setdefault(link.a.owner, []).append(link.b.owner)
        neighbours.setdefault(link.b.owner, []).append(link.a.owner)
    distance = {source: 0}
    queue = deque([source])
    while queue:
        current = queue.popleft()
        for neighbour in neighbours[current]:
            if neighbour not in distance:
                distance[neighbour] = distance[current] + 1
                queue.append(neighbour)
    return distance[target]


def assert_broadcast_arrives_once(cluster: RunningCluster, sockets: dict[str, socket.socket], number: int) -> None:
    source, *others = sockets
    sockets[source].send(node_sockets.numbered_frame(node_sockets.BROADCAST, node_sockets.mac(cluster, source), number))
    for name in others:
        node_sockets.wait_until_readable(sockets[name])
    # A circulating frame would arrive repeatedly, also before the marker frames.
    last = others[-1]
    for name in others:
        sockets[last].send(
            node_sockets.numbered_frame(node_sockets.mac(cluster, name), node_sockets.mac(cluster, last), number + 1)
        )
    for name in others[:-1]:
        until = time.monotonic() + 10
        numbers: list[int] = []
        while number + 1 not in numbers:
            assert time.monotonic() < until
            node_sockets.wait_until_readable(sockets[name])
            numbers += node_sockets.frame_numbers(node_sockets.received(sockets[name]))
        assert numbers == [number, number + 1], name
    assert node_sockets.frame_numbers(node_sockets.received(sockets[last])) == [number], last
    assert node_sockets.received(sockets[source]) == []


@pytest.mark.parametrize("make", CYCLIC.values(), ids=CYCLIC)
def test_a_broadcast_in_a_cyclic_topology_arrives_exactly_once(make: object) -> None:
    with make().up() as cluster, node_sockets.nic_sockets(cluster) as sockets:  # type: ignore[operator]
        assert_broadcast_arrives_once(cluster, sockets, 1)
        for first, second in sample(cluster.state.layout):
            ping(cluster, first, second)
        for socket in sockets.values():
            node_sockets.received(socket)
        assert_broadcast_arrives_once(cluster, sockets, 3)
        with wire_counters(cluster) as read:
            before = read()  # type: ignore[operator]
            time.sleep(0.05)  # a looping frame would pass thousands of times meanwhile
            assert read() == before  # type: ignore[operator]


@pytest.mark.parametrize("make", CYCLIC.values(), ids=CYCLIC)
def test_unicast_frames_in_a_cyclic_topology_take_one_shortest_path(make: object) -> None:
    count = 7
    with make().up() as cluster, node_sockets.nic_sockets(cluster) as sockets, wire_counters(cluster) as read:  # type: ignore[operator]
        layout = cluster.state.layout
        for first, second in sample(layout):
            before = read()  # type: ignore[operator]
            for number in range(count):
                sockets[first].send(
                    node_sockets.numbered_frame(
                        node_sockets.mac(cluster, second), node_sockets.mac(cluster, first), number
                    )
                )
            arrived: list[int] = []
            while len(arrived) < count:
                node_sockets.wait_until_readable(sockets[second])
                arrived += node_sockets.frame_numbers(node_sockets.received(sockets[second]))
            assert arrived == list(range(count))
            moved = {
                device: (rx - before[device][0], tx - before[device][1])
                for device, (rx, tx) in read().items()  # type: ignore[operator]
                if (rx, tx) != before[device]
            }
            # A trunk has both ends in the wire namespace, the first and the last link one each.
            switches_only = path_length(layout, first, second) - 2
            assert sorted(moved.values()) == sorted([(count, 0), (0, count)] * (switches_only + 1))


# Several networks


def test_nodes_of_different_networks_reach_each_other_through_routers() -> None:
    """n1 - s1 - r1 - s2 - r2 - (cable) - n3, with IPv4 and IPv6"""
    description = Cluster(
        name="routed",
        network6="fd00:1::/48",
        nodes=[Node(name=name) for name in ("n1", "n2", "r1", "r2", "n3")],
        switches=[Switch(name="s1"), Switch(name="s2")],
        links=[
            Link(ends=ends)
            for ends in (["n1", "s1"], ["r1", "s1"], ["r1", "s2"], ["n2", "s2"], ["r2", "s2"], ["r2", "n3"])
        ],
    )
    with description.up() as cluster:
        for first, second in itertools.permutations(["n1", "n2", "n3", "r1", "r2"], 2):
            ping(cluster, first, second)
            addresses = [text for nic in cluster[second].layout.nics for text in nic.addresses if ":" in text]
            ping(cluster, first, addresses[-1].partition("/")[0], "-6")
        output = cluster["n1"].run(["ping", "-n", "-c1", "-t1", "n3"], check=False).stdout
        assert cluster["r1"].layout.nics[0].addresses[1].partition("/")[0] in output  # the first hop answers


# Environment of programs in nodes


def test_node_names_resolve_in_nodes_only() -> None:
    with Cluster.star(3).up() as cluster:
        for first, second in itertools.permutations(["n1", "n2", "n3"], 2):
            assert cluster[first].run(["getent", "hosts", second]).stdout.split() == [cluster[second].address, second]
        assert "n2" not in Path("/etc/hosts").read_text()


def test_a_program_sees_its_nodes_host_name_environment_and_files(tmp_path: Path) -> None:
    existing = tmp_path / "existing.conf"
    existing.write_text("the machine's\n")
    (tmp_path / "neighbour").write_text("untouched\n")
    files = {
        str(existing): "the node's\n",
        str(tmp_path / "missing.conf"): "new\n",
        str(tmp_path / "a" / "b" / "deep.conf"): "deep\n",
        "/etc/testbed-test.conf": "in /etc\n",
    }
    nodes = [Node(name="n1", environment={"ROLE": "first", "EMPTY": ""}, files=files), Node(name="n2")]
    with Cluster(name="files", nodes=nodes).up() as cluster:
        n1, n2 = cluster["n1"], cluster["n2"]
        assert n1.run(["hostname"]).stdout == "n1\n"
        assert n2.run(["hostname"]).stdout == "n2\n"
        assert n1.run(["sh", "-c", "echo $ROLE-$EMPTY-$HOME"]).stdout == f"first--{os.environ['HOME']}\n"
        assert n1.run(["sh", "-c", "echo $ROLE"], env={"ROLE": "other"}).stdout == "other\n"
        assert n2.run(["sh", "-c", "echo $ROLE"]).stdout == "\n"
        for target, content in files.items():
            assert n1.run(["cat", target]).stdout == content
        assert n1.run(["cat", str(tmp_path / "neighbour"), "/etc/passwd"]).stdout.startswith("untouched\nroot:")
        assert n2.run(["cat", str(existing)]).stdout == "the machine's\n"
        assert n2.run(["cat", "/etc/testbed-test.conf"], check=False).returncode == 1
        assert sorted(os.listdir(tmp_path)) == ["existing.conf", "neighbour"]
        assert not Path("/etc/testbed-test.conf").exists()
        assert n1.run(["ls", "/sys/class/net"]).stdout == "lo\n"


@pytest.mark.usefixtures("machine")
def test_a_private_directory_belongs_to_its_node_until_the_cluster_is_removed(tmp_path: Path) -> None:
    """Only the node's programs share its files; the machine's directory of that name is unchanged."""
    (tmp_path / "existing").mkdir(mode=0o700)
    (tmp_path / "existing" / "of the machine").touch()
    private_directories = (str(tmp_path / "missing" / "deep"), str(tmp_path / "existing"), "/tmp")
    files = {str(tmp_path / "existing" / "given"): "a file in it\n"}
    nodes = [Node(name=name, private_directories=private_directories, files=files) for name in ("n1", "n2")]
    with Cluster(name="files", nodes=nodes).up() as cluster:
        n1, n2 = cluster["n1"], cluster["n2"]
        for directory in private_directories[:2]:
            assert n1.run(["sh", "-c", f"echo mine > {directory}/written"]).returncode == 0
            assert n1.run(["cat", f"{directory}/written"]).stdout == "mine\n"
        assert n2.run(["ls", private_directories[0]]).stdout == ""
        assert n2.run(["ls", private_directories[1]]).stdout == "given\n"
        assert n1.run(["stat", "-c", "%a", *private_directories[1:]]).stdout == "700\n1777\n"
    assert os.listdir(tmp_path) == ["existing"]
    assert os.listdir(tmp_path / "existing") == ["of the machine"]


def test_impossible_private_directories_are_rejected_before_anything_is_made() -> None:
    node = Node(name="n1", private_directories=("/run", "/etc/passwd", "/proc/own", "/nonesuch/own"))
    with pytest.raises(UnsupportedError) as caught:
        Cluster(name="files", nodes=[node]).up()
    message = str(caught.value)
    for expected in (
        "/run contains /run/netns-testbed, which programs in nodes need",
        "/etc/passwd is a file on this machine: a directory cannot be mounted over it",
        "/proc/own is in a file system of the kernel: no directory can be mounted there",
        "/nonesuch/own is in a top-level directory that this machine does not have",
    ):
        assert expected in message


def test_a_node_file_can_be_in_a_world_writable_directory() -> None:
    with Cluster(name="files", nodes=[Node(name="n1", files={"/var/tmp/testbed-test": "x"})]).up() as cluster:
        assert cluster["n1"].run(["stat", "-c", "%a", "/var/tmp"]).stdout == "1777\n"
        assert cluster["n1"].run(["cat", "/var/tmp/testbed-test"]).stdout == "x"


def test_impossible_paths_of_files_are_rejected_before_anything_is_made(machine: Machine) -> None:
    files = {"/etc": "x", "/nonesuch/file": "x", f"/tmp/{'long' * 70}": "x"}
    with pytest.raises(UnsupportedError) as caught:
        Cluster(name="files", nodes=[Node(name="n1", files=files)]).up()
    message = str(caught.value).splitlines()
    assert len(message) == 4
    assert message[1].endswith("/etc is a directory on this machine: a file cannot be mounted over it")
    assert message[2].endswith("/nonesuch/file is in a top-level directory that this machine does not have")
    assert message[3].endswith("cannot be a file on this machine: File name too long")
    machine.assert_unchanged()


def test_a_program_that_cannot_enter_its_node_gets_an_error_with_the_reason() -> None:
    """The file that is mounted as /etc/hosts has been removed."""
    with Cluster.star(1).up() as cluster:
        hosts = Store().hosts_file(cluster.name)
        hosts.unlink()
        with pytest.raises(TestbedError, match=r"n1: the program could not enter the node: .*/etc/hosts"):
            cluster["n1"].run(["true"])


@pytest.mark.parametrize("target", ["/proc/testbed", "/sys/testbed", "/dev/testbed"])
def test_files_in_kernel_file_systems_are_rejected_before_anything_is_made(machine: Machine, target: str) -> None:
    with pytest.raises(UnsupportedError, match=rf"{target} is in a file system of the kernel"):
        Cluster(name="files", nodes=[Node(name="n1", files={target: "x"})]).up()
    machine.assert_unchanged()


def test_a_program_runs_on_the_cpus_of_its_node() -> None:
    first = min(os.sched_getaffinity(0))
    with Cluster(name="cpus", nodes=[Node(name="n1", cpus=[first]), Node(name="n2")]).up() as cluster:
        command = ["grep", "Cpus_allowed_list", "/proc/self/status"]
        assert cluster["n1"].run(command).stdout.split()[1] == str(first)
        assert cluster["n2"].run(command).stdout == subprocess.run(command, capture_output=True, text=True).stdout


def test_cpus_that_the_machine_does_not_have_are_rejected(machine: Machine) -> None:
    with pytest.raises(UnsupportedError, match=r"node n1: this machine has no CPU 4000 for it"):
        Cluster(name="cpus", nodes=[Node(name="n1", cpus=[0, 4000])]).up()
    machine.assert_unchanged()


def test_limits_without_cgroup_controllers_are_rejected_before_anything_is_made(machine: Machine) -> None:
    """On a machine with the cgroup v2 controllers, the test checks that the limits are set instead."""
    refusal = cgroups.refusal(0.5, 0) and cgroups.refusal(0.0, 1 << 26)
    nodes = [Node(name="n1", cpu_share=0.5), Node(name="n2", memory="64MiB")]
    description = Cluster(name="limits", nodes=nodes)
    if not refusal:
        with description.up() as cluster:
            assert Path(cgroups.group(cluster.name, "n1"), "cpu.max").read_text() == "50000 100000\n"
            assert Path(cgroups.group(cluster.name, "n2"), "memory.max").read_text() == f"{64 << 20}\n"
        return
    with pytest.raises(UnsupportedError) as caught:
        description.up()
    first, second, third = str(caught.value).splitlines()
    assert first == "limits cannot be brought up:"
    assert second.startswith("  node n1: its CPU share or memory limit cannot be kept: cgroup version 2 ")
    assert third.startswith("  node n2: its CPU share or memory limit cannot be kept: cgroup version 2 ")
    assert "cpu controller" in second or "not mounted" in second
    machine.assert_unchanged()


def test_static_addresses_can_be_used_at_once() -> None:
    """Duplicate address detection, which would delay IPv6 addresses by a second, is off."""
    nodes = [
        Node(name="n1", nics=[Nic(name="eth0", addresses=["10.9.0.1/24", "2001:db8:9::1/64"])]),
        Node(name="n2", nics=[Nic(name="eth0", addresses=["10.9.0.2/24", "2001:db8:9::2/64"])]),
    ]
    links = [Link(ends=["n1:eth0", "s1"]), Link(ends=["n2:eth0", "s1"])]
    with Cluster(name="static", nodes=nodes, switches=[Switch(name="s1")], links=links).up() as cluster:
        cluster["n1"].run(["ping", "-n", "-c1", "-W5", "2001:db8:9::2"])
        cluster["n2"].run(["ping", "-n", "-c1", "-W5", "10.9.0.1"])
        (nic,) = (entry for entry in query(cluster["n1"].namespace, "ip", "address") if entry["ifname"] == "eth0")
        assert {entry["local"] for entry in nic["addr_info"]} == {"10.9.0.1", "2001:db8:9::1"}  # no link-local address


def frames_after_link_up(network6: str | None) -> list[bytes]:
    """Return the frames that n1 to n3 receive within two seconds after the link of n3, the router to n4, is set up."""
    description = Cluster(
        name="quiet",
        network6=network6,
        nodes=[Node(name=f"n{number}") for number in range(1, 5)],
        switches=[Switch(name="s1")],
        links=[Link(ends=ends) for ends in (["n1", "s1"], ["n2", "s1"], ["n3", "s1"], ["n3", "n4"])],
    )
    with description.up(name="quiet", keep=True) as cluster, ExitStack() as stack:
        sockets = [
            stack.enter_context(node_sockets.open_socket(cluster[name].namespace, "eth0", node_sockets.ETH_P_ALL))
            for name in ("n1", "n2", "n3")
        ]
        cluster["n3"].run(["ip", "link", "set", "eth0", "down"])
        description.up(name="quiet", keep=True)
        time.sleep(2)  # router solicitations come within 1 s, STP hellos every 2 s
        return [data for packet_socket in sockets for data in node_sockets.received(packet_socket)]


def test_idle_nodes_and_switches_send_no_frames() -> None:
    """No router solicitation, neighbour discovery, multicast listener report or spanning tree frame."""
    assert [data.hex() for data in frames_after_link_up(None)] == []


def test_static_ipv6_addresses_cause_only_multicast_listener_reports() -> None:
    """The kernel reports the multicast groups of its addresses (RFC 3810); this cannot be disabled."""
    for data in frames_after_link_up("fd00:1::/48"):
        ethertype, next_header, after_options, kind = data[12:14], data[20], data[54], data[62]
        assert (ethertype, next_header, after_options, kind) == (b"\x86\xdd", 0, 58, 143), data.hex()


# The machine


FEATURES = {"rx": 0x14, "tx": 0x16, "sg": 0x18, "tso": 0x1E, "gso": 0x23, "gro": 0x2B}  # linux/ethtool.h, ETHTOOL_G...
SIOCETHTOOL = 0x8946


def offloads(namespace: str, device: str) -> dict[str, int]:
    """Return an interface's offload features, as ethtool's ioctl reports them."""
    features = {}
    with node_sockets.open_socket(namespace, device) as channel:
        for name, number in FEATURES.items():
            value = array.array("B", struct.pack("=II", number, 0))
            request = struct.pack("16sP", device.encode(), value.buffer_info()[0])
            fcntl.ioctl(channel, SIOCETHTOOL, request)
            features[name] = struct.unpack("=II", value)[1]
    return features


def test_offloads_equal_those_of_an_ordinary_veth() -> None:
    with Cluster.star(2).up() as cluster, namespaces.restore_namespace():
        syscalls.unshare(syscalls.CLONE_NEWNET)
        subprocess.run(["ip", "link", "add", "plain", "type", "veth", "peer", "name", "peer"], check=True)
        expected = offloads("/proc/thread-self/ns/net", "plain")
        assert expected["tso"] == expected["tx"] == 1
        assert offloads(cluster["n1"].namespace, "eth0") == expected
        assert offloads(wire_path(cluster.state), "n1.eth0") == expected


def test_the_machines_interfaces_are_unchanged(machine: Machine) -> None:
    before = subprocess.run(["ip", "-j", "address"], capture_output=True, check=True).stdout
    with Cluster.fat_tree(4).up():
        assert subprocess.run(["ip", "-j", "address"], capture_output=True, check=True).stdout == before
    machine.assert_unchanged()


def test_ip_netns_lists_the_nodes_of_a_lasting_cluster() -> None:
    def listed_namespaces() -> set[str]:
        output = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
        return {line.split()[0] for line in output.splitlines()}

    with Cluster.star(2).up(name="listed", keep=True):
        assert listed_namespaces() == {"listed", "listed.n1", "listed.n2"}
        subprocess.run(
            ["ip", "netns", "exec", "listed.n1", "ping", "-qc1", "10.0.0.2"], check=True, capture_output=True
        )
    assert listed_namespaces() == set()


def test_every_cable_of_a_layout_is_a_veth_pair_in_the_kernel() -> None:
    with Cluster.full_mesh(4).up() as cluster:
        wiring = Wiring(cluster.state.layout)
        devices = {entry["ifname"] for entry in query(wire_path(cluster.state), "ip", "link", "show", "type", "veth")}
        assert devices == {name for _, name in wiring.wire_devices}
