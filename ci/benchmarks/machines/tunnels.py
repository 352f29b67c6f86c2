"""An unimpaired link between two nodes on different machines, compared with a VXLAN that ends in the nodes.

The bare VXLAN is measured twice: the difference between both is the resolution of the measurement. A third VXLAN leads to
the node by a bridge and a veth pair, as test scripts often wire it, and shows the cost of a separate interface of the
node. A link that is declared direct has no such interface: its VXLAN ends in the nodes, too.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

from benchmarks.harness.contenders import ContenderError
from benchmarks.harness.processors import RECEIVER, SENDER
from benchmarks.harness.rows import Row
from benchmarks.harness.traffic import NodeAddress, Traffic
from local_machines import Lab
from testbed.machines import spread
from testbed.machines.node_placement import Constraints
from testbed.spec.model import Description
from testbed.spec.resolver import resolve

TESTBED, DIRECT = "testbed", "testbed, direct link"
BARE, AGAIN, BRIDGED = "bare VXLAN", "bare VXLAN again", "VXLAN, bridge and veth"
TCP, ROUND_TRIP = "TCP", "round trip of 8 bytes of TCP, p50"
SUBJECT = "link between machines"
UNDERLAY_MTU = 9000
_MTU = 1500
_NAMES: Final = {TESTBED: "bench-link", DIRECT: "bench-direct"}
_PLACES: Final = {"a": "n1", "b": "n2"}
_PAIR = """
name = "{name}"
node = [{{ name = "n1" }}, {{ name = "n2" }}]
link = [{{ ends = ["n1", "n2"], datapath = "{datapath}" }}]
"""
_BARE_VNI, _BRIDGED_VNI = 71, 72


def measure(
    machines: Lab, traffic: Traffic, turns: int, count: int, seconds: float, progress: Callable[[str], None]
) -> Iterator[Row]:
    """Measure streams and round trips of all contenders in turn. count: number of round trips. seconds: duration of each
    stream."""
    streams: dict[str, list[float]] = defaultdict(list)
    trips: dict[str, list[float]] = defaultdict(list)
    with (
        _by_testbed(machines, TESTBED) as redirected,
        _by_testbed(machines, DIRECT) as direct,
        _by_ip(machines, "bare", _BARE_VNI) as bare,
        _by_ip(machines, "bridged", _BRIDGED_VNI) as bridged,
    ):
        ends = {TESTBED: redirected, DIRECT: direct, BARE: bare, AGAIN: bare, BRIDGED: bridged}
        for turn in range(turns + 1):
            progress(f"link: {f'{turn} of {turns}' if turn else 'warm-up'}")
            order = list(ends.items())
            for name, (source, sink) in order if turn % 2 else reversed(order):
                stream = traffic.tcp(source, sink, seconds)["bits"]
                trip = traffic.round_trips(source, sink, count, spin=True)["p50"] / 1e9
                if turn:
                    streams[name].append(stream)
                    trips[name].append(trip)
    settings = {
        "mtu": _MTU, "underlay mtu": UNDERLAY_MTU, "seconds": seconds, "round_trips": count, "waiting": "spinning",
        "by": "traffic.c", "processors": {"sender": SENDER, "receiver": RECEIVER}, "interleaved": [*ends],
    }  # fmt: skip
    for name in ends:
        yield Row(SUBJECT, name, TCP, 2, "bit/s", tuple(streams[name]), settings)
        yield Row(SUBJECT, name, ROUND_TRIP, 2, "s", tuple(trips[name]), settings)


@contextmanager
def _by_testbed(machines: Lab, kind: str) -> Iterator[tuple[NodeAddress, NodeAddress]]:
    """Context manager: the nodes of a cluster of two, one on each machine. kind: `TESTBED` or `DIRECT`."""
    name, datapath = _NAMES[kind], "direct" if kind == DIRECT else "auto"
    layout = resolve(Description.from_toml(_PAIR.format(name=name, datapath=datapath)))
    pins = Constraints({node: machine for machine, node in _PLACES.items()})
    with machines.workers("lab.toml") as running:
        spread.up(running, spread.plan_spread(running, layout, name, pins), name, "benchmark", "auto")
        try:
            results = [
                NodeAddress(str(machines.netns_folder(machine) / f"{name}.{node.name}"), node.address, node.nics[0].mac)
                for machine, node in zip(_PLACES, layout.nodes, strict=True)
            ]
            yield results[0], results[1]
        finally:
            spread.down(running, name)


@contextmanager
def _by_ip(machines: Lab, kind: str, vni: int) -> Iterator[tuple[NodeAddress, NodeAddress]]:
    """Context manager: two namespaces with a VXLAN of equal settings, made by `ip`: with the VXLAN itself in them ("bare"),
    or a veth pair whose other end is on a bridge with it ("bridged")."""
    addresses = {"a": f"10.{vni}.0.1", "b": f"10.{vni}.0.2"}
    with ExitStack() as stack:
        results = []
        for machine, remote in (("a", "b"), ("b", "a")):
            _ip(machines, machine, f"netns add {kind}")
            stack.callback(_ip, machines, machine, f"netns delete {kind}")
            vxlan = (
                f"type vxlan id {vni} local {machines.address(machine)} remote {machines.address(remote)} dstport 4789"
            )
            _ip(machines, machine, f"link add vx{vni} mtu {_MTU} {vxlan} nolearning")
            if kind == "bare":
                _ip(machines, machine, f"link set vx{vni} netns {kind} name eth0")
            else:
                stack.callback(_ip, machines, machine, f"link delete vx{vni}")
                _ip(machines, machine, f"link add br{vni} type bridge stp_state 0 mcast_snooping 0")
                stack.callback(_ip, machines, machine, f"link delete br{vni}")
                _ip(machines, machine, f"link add v{vni} mtu {_MTU} type veth peer name eth0 mtu {_MTU} netns {kind}")
                for device in (f"vx{vni}", f"v{vni}"):
                    _ip(machines, machine, f"link set {device} master br{vni} up")
                _ip(machines, machine, f"link set br{vni} up")
            _ip(machines, machine, f"-n {kind} address add {addresses[machine]}/24 dev eth0")
            _ip(machines, machine, f"-n {kind} link set eth0 up")
            results.append(NodeAddress(str(machines.netns_folder(machine) / kind), addresses[machine], ""))
        yield results[0], results[1]


def _ip(machines: Lab, machine: str, arguments: str) -> None:
    done = machines.on(machine, "ip", *arguments.split())
    if done.returncode:
        raise ContenderError(f"ip {arguments} on machine {machine}: {done.stderr.strip()}")
