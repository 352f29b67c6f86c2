"""The BPF loss classifier on real interfaces: the n-th frame of a flow has the model's fate, from any sender."""

from __future__ import annotations

import ast
import json
import os
import random
import socket
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass

import pytest

from testbed.errors import PermissionDeniedError
from testbed.fabric.direction import LinkDirection
from testbed.fates import fate_hash
from testbed.fates.stage import FateOptions
from testbed.kernel import loss_classifier, namespaces, netlink_messages, rtnl_dump, syscalls
from testbed.kernel.children import in_child
from testbed.kernel.loss_classifier import Counters, losses_of
from testbed.kernel.namespaces import OpenNamespace
from testbed.kernel.netlink import RequestError
from testbed.spec.layout import Impairment
from tests.live.forked_children import background
from tests.live.machine_state import eventually
from tests.live.node_sockets import ETH_P_ALL, open_socket, received
from tests.unit.fates.wire_frames import A, B, C, arp, ethernet, ipv6, ports, tagged, tcp, udp

pytestmark = [pytest.mark.requires("bpf"), pytest.mark.usefixtures("machine")]

LINK, SEED = "n1:eth0--n2:eth0", 7
KEY = fate_hash.direction_key(SEED, LINK, "forward")
IN, OUT, NIC = 101, 102, 7
RECEIVE_BYTES = 64 << 20
NUMBER_BYTES = 4  # of the frame number at a frame's end


@dataclass(slots=True)
class Cable:
    """Two nodes and the wire namespace between them, which classifies frames from one and redirects them to the other."""

    wire: OpenNamespace
    sender: socket.socket
    receiver: socket.socket

    def attach(self, impairment: Impairment, key: int = KEY) -> None:
        with loss_classifier.load(losses_of(key, impairment)) as classifier:
            self.wire.route.execute([loss_classifier.attach(IN, classifier)])

    def counters(self) -> Counters:
        counted = loss_classifier.read_counters(self.wire.route, IN)
        assert counted is not None
        return counted

    def flows(self) -> list[int]:
        """Return the number of frames of each flow, sorted."""
        with loss_classifier.open_attached(self.wire.route, IN) as classifier:
            assert classifier is not None
            return sorted(classifier.flows().values())

    def carry(self, frames: Sequence[bytes]) -> list[int]:
        """Send frames numbered from 1 one by one; return the numbers that arrive."""
        before = self.counters()
        arrived: list[int] = []
        for number, frame in enumerate(frames, 1):
            self.sender.send(frame + number.to_bytes(NUMBER_BYTES, "big"))
            if number % 64 == 0:
                arrived += numbers(received(self.receiver))
        self.settle(before, len(frames), arrived)
        return arrived

    def settle(self, before: Counters, sent: int, arrived: list[int]) -> None:
        """Wait until all frames have been classified; add late arrivals to `arrived`."""

        def all_classified() -> bool:
            counted = self.counters()
            arrived.extend(numbers(received(self.receiver)))
            return counted.offered == before.offered + sent and len(arrived) == sent - (counted.lost - before.lost)

        eventually(all_classified, f"{sent} frames are offered and the survivors arrive; before: {before}")


def numbers(frames: Sequence[bytes]) -> list[int]:
    return [int.from_bytes(frame[-NUMBER_BYTES:], "big") for frame in frames]


@contextmanager
def namespace(name: str) -> Iterator[OpenNamespace]:
    with namespaces.restore_namespace():
        opened = namespaces.make(name, namespaces.WIRE_SETTINGS)
    try:
        yield opened
    finally:
        opened.close()


@pytest.fixture
def cable() -> Iterator[Cable]:
    with ExitStack() as stack:
        ends = [stack.enter_context(namespace(name)) for name in ("n1", "n2")]
        wire = stack.enter_context(namespace("wire"))
        veths = [
            netlink_messages.make_veth(f"n{number}.eth0", index, 1500, end.descriptor, "eth0", NIC)
            for number, index, end in ((1, IN, ends[0]), (2, OUT, ends[1]))
        ]
        wire.route.execute([*veths, netlink_messages.add_clsact(IN), netlink_messages.redirect_ingress(IN, OUT)])
        for end in ends:
            end.route.execute([netlink_messages.set_up(NIC)])
        sender, receiver = (
            stack.enter_context(open_socket(f"/proc/self/fd/{end.descriptor}", "eth0", ETH_P_ALL)) for end in ends
        )
        receiver.setsockopt(socket.SOL_SOCKET, 33, RECEIVE_BYTES)  # SO_RCVBUFFORCE
        sender.setblocking(True)
        yield Cable(wire, sender, receiver)


def survivors(impairment: Impairment, frames: Sequence[bytes]) -> list[int]:
    """Return the numbers of the frames that the model does not lose."""
    model = LinkDirection(LINK, "forward", impairment, FateOptions(seed=SEED))
    return [
        number
        for number, frame in enumerate(frames, 1)
        if not model.offer(0, frame + number.to_bytes(NUMBER_BYTES, "big")).dropped
    ]


def test_two_interleaved_flows_have_the_models_fates(cable: Cable) -> None:
    impairment = Impairment(loss=0.3)
    rng = random.Random("interleaved")
    frames = [ethernet(bytes(46), source=rng.choice([A, C])) for _ in range(3_000)]
    cable.attach(impairment)
    arrived = cable.carry(frames)
    assert arrived == survivors(impairment, frames)
    counted = cable.counters()
    assert (counted.offered, counted.loss) == (3_000, 3_000 - len(arrived))
    assert (counted.offered_bytes, counted.lost_bytes) == (3_000 * 64, counted.loss * 64)
    assert counted.is_exact
    assert cable.flows() == sorted(Counter(frame[6:12] for frame in frames).values())


def test_frames_of_every_kind_have_the_models_fates(cable: Cable) -> None:
    """Including VLAN tags, which the kernel removes from the frame, and truncated headers."""
    rng = random.Random("kinds")
    kinds = [
        udp(5000, 53),
        tcp(80, 4321),
        udp(offset=0x2001),
        ipv6(ports(7, 8) + bytes(20), 17),
        arp(),
        ethernet(bytes(20)),
        ethernet(b"\x45" + bytes(3), ethertype=0x0800),
        ethernet(b"\x60" + bytes(9), ethertype=0x86DD),
        ethernet(bytes(46), ethertype=46),
        tagged(udp(5000, 53), 5),
        tagged(ethernet(bytes(30)), 6, tag=0x88A8),
        tagged(tagged(tcp(80, 4321), 1), 2, tag=0x88A8),
        tagged(tagged(tagged(udp(5000, 53), 1), 2), 3),
        tagged(tagged(ethernet(bytes(46), ethertype=46), 1), 2),
    ]
    frames = [rng.choice(kinds) for _ in range(4_000)]
    impairment = Impairment(loss=0.4)
    cable.attach(impairment)
    assert cable.carry(frames) == survivors(impairment, frames)
    assert cable.counters().offered_bytes == sum(len(frame) + NUMBER_BYTES for frame in frames)


@pytest.mark.parametrize(
    "impairment",
    [
        Impairment(gemodel=(0.1, 0.3, 1.0, 0.0)),
        Impairment(loss_pattern="5, 12, 24 every 30"),
        Impairment(loss=0.1, gemodel=(0.05, 0.4, 0.8, 0.01), loss_pattern="1-3"),
    ],
)
def test_losses_with_a_state_per_direction_equal_the_models(impairment: Impairment, cable: Cable) -> None:
    frames = [ethernet(bytes(46), source=A + number % 3) for number in range(2_000)]
    cable.attach(impairment)
    assert cable.carry(frames) == survivors(impairment, frames)


def send_from(cores: Sequence[int], cable: Cable, frames: Sequence[Sequence[bytes]]) -> list[int]:
    """Send each list of frames from its own core, concurrently; return the numbers that arrive."""
    before = cable.counters()
    arrived: list[int] = []
    ready, go = os.pipe()

    def sender_on(core: int, own: Sequence[bytes]) -> Callable[[Callable[[object], None]], None]:
        def send(report: Callable[[object], None]) -> None:
            os.sched_setaffinity(0, {core})
            report("ready")
            os.read(ready, 1)
            for frame in own:
                cable.sender.send(frame)
            report("sent")

        return send

    with ExitStack() as stack:
        stack.callback(os.close, ready)
        stack.callback(os.close, go)
        senders = [
            stack.enter_context(background(sender_on(core, own))) for core, own in zip(cores, frames, strict=True)
        ]
        assert [sender.next_report() for sender in senders] == ["ready"] * len(senders)
        os.write(go, bytes(len(senders)))
        assert [sender.next_report() for sender in senders] == ["sent"] * len(senders)
        assert [sender.wait() for sender in senders] == [0] * len(senders)
    cable.settle(before, sum(map(len, frames)), arrived)
    return arrived


@pytest.mark.requires("two-cpus")
def test_concurrent_cores_never_give_two_frames_the_same_number(cable: Cable) -> None:
    """Each core sends a flow of its own, and both share a third one, whose order is undefined; each n
    occurs once."""
    each = 8_000
    cores = sorted(os.sched_getaffinity(0))[:2]
    impairment = Impairment(loss=0.3)

    def numbered(source: int, first: int) -> list[bytes]:
        return [ethernet(bytes(46), source=source) + number.to_bytes(4, "big") for number in range(first, first + each)]

    cable.attach(impairment)
    own = {A: numbered(A, 0), C: numbered(C, each)}
    shared = numbered(B + 5, 2 * each), numbered(B + 5, 3 * each)
    frames = [
        [frame for pair in zip(own_frames, shared_frames, strict=True) for frame in pair]
        for own_frames, shared_frames in zip(own.values(), shared, strict=True)
    ]
    arrived = send_from(cores, cable, frames)

    model = LinkDirection(LINK, "forward", impairment, FateOptions(seed=SEED))
    for source, sent in own.items():
        kept = [number for number, frame in zip(numbers(sent), sent, strict=True) if not model.offer(0, frame).dropped]
        assert [number for number in arrived if number // each == (source == C)] == kept
    shared_survivors = sum(not model.offer(0, frame).dropped for frame in [*shared[0], *shared[1]])
    assert sum(number >= 2 * each for number in arrived) == shared_survivors
    assert cable.flows() == [each, each, 2 * each]


@pytest.mark.requires("two-cpus")
def test_concurrent_cores_step_the_loss_states_in_order(cable: Cable) -> None:
    """The model loses the same number of frames, whichever frame is the n-th."""
    each = 8_000
    impairment = Impairment(gemodel=(0.1, 0.3, 0.9, 0.05), loss_pattern="2, 7 every 9")
    frames = [ethernet(bytes(46)) + number.to_bytes(4, "big") for number in range(2 * each)]
    cable.attach(impairment)
    arrived = send_from(sorted(os.sched_getaffinity(0))[:2], cable, [frames[:each], frames[each:]])
    model = LinkDirection(LINK, "forward", impairment, FateOptions(seed=SEED))
    assert len(arrived) == sum(not model.offer(0, frame).dropped for frame in frames)
    counted = cable.counters()
    assert counted.is_exact
    assert (counted.gemodel, counted.loss_pattern) == (model.counters.gemodel, model.counters.loss_pattern)


@pytest.mark.requires("ip")
def test_frames_are_classified_during_replacements_of_the_classifier(cable: Cable) -> None:
    """Two hundred classifiers that lose all frames replace each other; no frame passes."""
    losses = losses_of(KEY, Impairment(loss=1.0))
    cable.attach(Impairment(loss=1.0))

    def send(report: Callable[[object], None]) -> None:
        report("sending")
        for number in range(200_000):
            cable.sender.send(ethernet(number.to_bytes(46, "big")))
        report("sent")

    with background(send) as sender:
        assert sender.next_report() == "sending"
        replaced = 0
        with ExitStack() as stack:
            first = stack.enter_context(loss_classifier.load(losses))
            counters = first.maps["counters"]
            cable.wire.route.execute([loss_classifier.attach(IN, first)])
            while replaced < 200:
                with loss_classifier.load(losses, counters) as next_classifier:
                    cable.wire.route.execute([loss_classifier.attach(IN, next_classifier)])
                replaced += 1
            last_counts = first.counters()
            assert 0 < last_counts.offered < 200_000, "the sender has to be active during all replacements"
        sender.kill()
    counted = cable.counters()
    assert counted.offered == counted.lost >= last_counts.offered
    assert received(cable.receiver) == []
    actual = loss_classifier.find_attached(cable.wire.route, IN)
    assert actual is not None
    assert classifiers(cable) == [actual.program]


def classifiers(cable: Cable) -> list[int]:
    """Return the program ids of all BPF filters on the hook, as printed by ``tc``."""
    with namespaces.restore_namespace():
        syscalls.setns(cable.wire.descriptor, syscalls.CLONE_NEWNET)
        shown = subprocess.run(
            ["tc", "-j", "filter", "show", "dev", "n1.eth0", "ingress"], capture_output=True, text=True, check=True
        )
    entries = json.loads(shown.stdout)
    assert min(entries, key=lambda entry: entry["pref"])["kind"] == "bpf"
    return [entry["options"]["prog"]["id"] for entry in entries if entry["kind"] == "bpf" and "options" in entry]


def test_a_changed_loss_restarts_the_frame_numbers_but_not_the_counters(cable: Cable) -> None:
    """Changes to other keys of the impairment leave the classifier and its frame numbers as they are."""
    frames = [ethernet(bytes(46))] * 500
    first, second = Impairment(loss=0.3), Impairment(loss=0.6)
    cable.attach(first)
    assert [*cable.carry(frames), *(500 + number for number in cable.carry(frames))] == survivors(first, frames * 2)
    lost = cable.counters().lost
    with (
        loss_classifier.open_attached(cable.wire.route, IN) as remote,
        loss_classifier.load(losses_of(KEY, second), remote.maps["counters"] if remote else None) as classifier,
    ):
        cable.wire.route.execute([loss_classifier.attach(IN, classifier)])
    assert cable.carry(frames) == survivors(second, frames)
    counted = cable.counters()
    assert counted.offered == 1_500
    assert counted.lost == lost + 500 - len(survivors(second, frames))


_READER = """
import sys
from dataclasses import asdict
from testbed.kernel import loss_classifier, namespaces
wire = namespaces.open_path(sys.argv[1])
print(asdict(loss_classifier.read_counters(wire.route, int(sys.argv[2]))))
assert loss_classifier.read_counters(wire.route, int(sys.argv[3])) is None
assert not any(name.startswith("pyroute2.") for name in sys.modules), "reading counters must not import pyroute2"
"""


def test_another_process_can_read_the_counters_and_the_name(cable: Cable) -> None:
    impairment = Impairment(loss=0.25)
    cable.attach(impairment)
    cable.carry([ethernet(bytes(46))] * 400)
    read = subprocess.run(
        [sys.executable, "-c", _READER, f"/proc/{os.getpid()}/fd/{cable.wire.descriptor}", str(IN), str(OUT)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert read.returncode == 0, read.stderr
    assert ast.literal_eval(read.stdout) == asdict(cable.counters())
    attached = loss_classifier.find_attached(cable.wire.route, IN)
    assert attached is not None
    assert attached.name == loss_classifier.name_of(losses_of(KEY, impairment))


def test_detaching_keeps_the_redirection_and_ends_the_loss(cable: Cable) -> None:
    cable.attach(Impairment(loss=1.0))
    assert cable.carry([ethernet(bytes(46))] * 50) == []
    cable.wire.route.execute([loss_classifier.detach(IN)])
    assert loss_classifier.read_counters(cable.wire.route, IN) is None
    assert rtnl_dump.wire_contents(cable.wire.route).redirections == {IN: OUT}
    for _ in range(50):
        cable.sender.send(ethernet(bytes(46)))
    arrived: list[bytes] = []
    eventually(lambda: bool(arrived.extend(received(cable.receiver)) or len(arrived) == 50), "all fifty arrive")
    with pytest.raises(RequestError, match="No such file"):
        cable.wire.route.execute([loss_classifier.detach(IN)])


def test_gso_frames_are_counted_as_merged(cable: Cable) -> None:
    """A packet socket with a virtio header sends one large TCP segment, as segmentation offload does."""
    cable.attach(Impairment(loss_pattern="1"))
    cable.sender.setsockopt(263, 15, 1)  # SOL_PACKET, PACKET_VNET_HDR
    # struct virtio_net_hdr: a checksum to be filled in, TCPv4, 54 bytes of headers, segments of 1,000, where the checksum is
    header = struct.pack("=BBHHHH", 1, 1, 54, 1_000, 34, 16)
    cable.sender.send(header + tcp(80, 4321, data=bytes(4_000)))
    eventually(lambda: cable.counters().offered == 1, "the frame is offered")
    assert cable.counters().merged == 1
    assert not cable.counters().is_exact


def test_an_ordinary_user_gets_an_error_that_names_root() -> None:
    def load_as_user() -> str:
        os.setgroups([])
        os.setresgid(65533, 65533, 65533)
        os.setresuid(65533, 65533, 65533)
        assert syscalls._libc.prctl(4, 1, 0, 0, 0) == 0  # PR_SET_DUMPABLE: the kernel hides /proc/self otherwise
        try:
            loss_classifier.load(losses_of(KEY, Impairment(loss=0.1)))
        except PermissionDeniedError as error:
            return f"{error}; {loss_classifier.probe()}"
        return "no error"

    assert "loss by BPF needs root" in in_child(load_as_user).partition("; ")[2]
    assert in_child(load_as_user).startswith("loss by BPF needs root: make the map counters: Operation not permitted; ")
