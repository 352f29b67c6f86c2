"""TBF and size tables on the machine's kernel, and their dumps."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Iterator
from contextlib import nullcontext

import pytest

from testbed.kernel import namespaces, netem, netlink_messages, qdiscs, shapers
from testbed.kernel.capabilities import probe_capabilities
from testbed.kernel.capability_probe import probe
from testbed.kernel.netlink import RequestError, RouteSocket
from testbed.kernel.qdiscs import Qdisc
from testbed.spec.layout import Impairment
from tests.live.machine_state import eventually

pytestmark = [pytest.mark.requires("root"), pytest.mark.usefixtures("machine")]

FIRST, SECOND = 101, 102
MTU = 1500
VERY_SLOW = 80  # bit/s: no frame leaves during a test


@pytest.fixture
def route() -> Iterator[RouteSocket]:
    """Yield a netlink socket in a namespace with a veth pair."""
    with namespaces.restore_namespace():
        opened = namespaces.make("testbed-test", namespaces.WIRE_SETTINGS)
        opened.route.execute(
            [
                netlink_messages.make_veth("one", FIRST, MTU, opened.descriptor, "other", SECOND),
                netlink_messages.set_up(FIRST),
                netlink_messages.set_up(SECOND),
            ]
        )
        yield opened.route
        opened.close()


def offer(count: int, size: int = 60) -> None:
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as sender:
        sender.bind(("one", 0))
        for _ in range(count):
            try:
                sender.send(bytes(size))
            except OSError:  # the queue is full
                continue


def current_qdisc(route: RouteSocket) -> Qdisc:
    return qdiscs.qdiscs(route)[FIRST]


def options(impairment: Impairment) -> shapers.Options:
    return shapers.options_of(impairment, mtu=MTU)


def test_the_kernel_reports_the_encoded_options_after_any_change(route: RouteSocket) -> None:
    rng = random.Random(21)
    before = None
    for _ in range(100):
        impairment = Impairment(
            rate=int(10 ** rng.uniform(0, 12)),
            queue=rng.choice((0, rng.randrange(1514, 2**31))),
            overhead=rng.choice((0, rng.randrange(-14, 1024))),
            minimum_frame=rng.choice((0, rng.randrange(1, 9000))),
        )
        if rng.random() < 0.3 and not impairment.queue:
            impairment = Impairment(rate=impairment.rate, queue_frames=rng.randrange(1, 10**6))
        expected = options(impairment)
        route.execute(shapers.requests(FIRST, expected, before))
        qdisc = current_qdisc(route)
        assert (qdisc.kind, qdisc.handle) == ("tbf", shapers.HANDLE), impairment
        assert expected.matches(shapers.decode(qdisc.options)), impairment
        assert qdisc.has_size_table is (expected.sizes is not None), impairment
        before = expected


def test_a_change_keeps_the_queue_and_the_counters(route: RouteSocket) -> None:
    route.execute(shapers.requests(FIRST, options(Impairment(rate=VERY_SLOW))))
    offer(100)
    qdisc = current_qdisc(route)
    assert qdisc.queued + qdisc.frames == 100
    assert qdisc.queued > 50
    route.execute(shapers.requests(FIRST, options(Impairment(rate=VERY_SLOW + 8))))
    changed = current_qdisc(route)
    assert (changed.queued, changed.frames) == (qdisc.queued, qdisc.frames)
    route.execute(shapers.requests(FIRST, options(Impairment(rate=10**9))))
    eventually(lambda: not current_qdisc(route).queued, "the queued frames leave at the new rate")
    assert (current_qdisc(route).frames, current_qdisc(route).dropped) == (100, 0)


@pytest.mark.parametrize(("queue", "frames"), [(7, 7), (1, 1)])
def test_a_queue_limit_in_frames_is_kept(route: RouteSocket, queue: int, frames: int) -> None:
    route.execute(shapers.requests(FIRST, options(Impairment(rate=VERY_SLOW, queue_frames=queue))))
    offer(200)
    qdisc = current_qdisc(route)
    assert qdisc.queued == frames
    assert qdisc.frames + qdisc.queued + qdisc.dropped == 200


def test_a_queue_limit_in_bytes_is_kept(route: RouteSocket) -> None:
    route.execute(shapers.requests(FIRST, options(Impairment(rate=VERY_SLOW, queue=10_000))))
    offer(500, size=100)
    assert current_qdisc(route).backlog == 10_000


def test_the_queue_limit_can_change_between_frames_and_bytes(route: RouteSocket) -> None:
    in_frames = options(Impairment(rate=VERY_SLOW, queue_frames=7))
    in_bytes = options(Impairment(rate=VERY_SLOW, queue=10_000))
    for expected, before, queued in ((in_frames, None, 7), (in_bytes, in_frames, 100), (in_frames, in_bytes, 7)):
        route.execute(shapers.requests(FIRST, expected, before))
        offer(500, size=100)
        assert current_qdisc(route).queued == queued


def test_frame_sizes_follow_the_size_table(route: RouteSocket) -> None:
    """Cells of 48 bytes with 5 bytes of overhead, 8 bytes for the trailer."""
    cells = Impairment(rate=10**10, overhead=8, cell_size=48, cell_overhead=5)
    route.execute(shapers.requests(FIRST, options(cells)))
    offer(10, size=60)
    offer(10, size=1514)
    assert current_qdisc(route).bytes == 10 * 2 * 53 + 10 * 32 * 53


def test_at_most_rate_and_burst_pass(route: RouteSocket) -> None:
    expected = options(Impairment(rate=80_000_000))
    start = time.monotonic_ns()
    route.execute(shapers.requests(FIRST, expected))
    while time.monotonic_ns() - start < 300_000_000:
        offer(100, size=1514)
    passed = current_qdisc(route).bytes
    elapsed = time.monotonic_ns() - start
    assert passed <= expected.rate * elapsed / 1e9 + expected.burst
    assert current_qdisc(route).dropped > 0
    assert passed >= 0.5 * expected.rate * elapsed / 1e9  # weak lower bound for a busy machine


def test_capabilities_agree_with_doctor() -> None:
    capabilities = probe_capabilities()
    reported = {capability.name: capability.available for capability in probe()}
    assert (capabilities.netem, capabilities.tbf, capabilities.bpf) == (
        reported["netem"],
        reported["tbf"],
        reported["bpf classifier"],
    )
    assert capabilities.relay
    names = ("netem", "netem_seed", "netem_duplicate", "size_table", "tbf", "bpf", "relay")
    assert set(capabilities.reasons) == {name for name in names if not getattr(capabilities, name)}


def test_netem_is_accepted_exactly_if_it_was_detected(route: RouteSocket) -> None:
    refusal = pytest.raises(RequestError, match="No such file or directory")
    with nullcontext() if probe_capabilities().netem else refusal:
        route.execute([netem.request(FIRST, netem.options_of(Impairment(delay=1), mtu=MTU))])
    assert (FIRST in qdiscs.qdiscs(route)) is probe_capabilities().netem
