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

ONE, OTHER = 101, 102
MTU = 1500
CRAWL = 80  # bit/s: nothing moves while a test runs


@pytest.fixture
def route() -> Iterator[RouteSocket]:
    """Yield a netlink socket in a namespace with a veth pair."""
    with namespaces.restore_namespace():
        opened = namespaces.make("testbed-test", namespaces.WIRE_SETTINGS)
        opened.route.execute(
            [
                netlink_messages.make_veth("one", ONE, MTU, opened.descriptor, "other", OTHER),
                netlink_messages.set_up(ONE),
                netlink_messages.set_up(OTHER),
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
            except OSError:  # a full queue is an event
                continue


def current_qdisc(route: RouteSocket) -> Qdisc:
    return qdiscs.qdiscs(route)[ONE]


def options(impairment: Impairment) -> shapers.Options:
    return shapers.options_of(impairment, mtu=MTU)


def test_the_kernel_reports_the_encoded_objects_whatever_existed_before(route: RouteSocket) -> None:
    source = random.Random(21)
    before = None
    for _ in range(100):
        impairment = Impairment(
            rate=int(10 ** source.uniform(0, 12)),
            queue=source.choice((0, source.randrange(1514, 2**31))),
            overhead=source.choice((0, source.randrange(-14, 1024))),
            minimum_frame=source.choice((0, source.randrange(1, 9000))),
        )
        if source.random() < 0.3 and not impairment.queue:
            impairment = Impairment(rate=impairment.rate, queue_frames=source.randrange(1, 10**6))
        requested = options(impairment)
        route.execute(shapers.requests(ONE, requested, before))
        qdisc = current_qdisc(route)
        assert (qdisc.kind, qdisc.handle) == ("tbf", shapers.HANDLE), impairment
        assert requested.matches(shapers.decode(qdisc.options)), impairment
        assert qdisc.sized is (requested.sizes is not None), impairment
        before = requested


def test_a_change_keeps_the_queue_and_the_counters(route: RouteSocket) -> None:
    route.execute(shapers.requests(ONE, options(Impairment(rate=CRAWL))))
    offer(100)
    qdisc = current_qdisc(route)
    assert qdisc.queued + qdisc.frames == 100
    assert qdisc.queued > 50
    route.execute(shapers.requests(ONE, options(Impairment(rate=CRAWL + 8))))
    changed = current_qdisc(route)
    assert (changed.queued, changed.frames) == (qdisc.queued, qdisc.frames)
    route.execute(shapers.requests(ONE, options(Impairment(rate=10**9))))
    eventually(lambda: not current_qdisc(route).queued, "what waited leaves at the new rate")
    assert (current_qdisc(route).frames, current_qdisc(route).dropped) == (100, 0)


@pytest.mark.parametrize(("queue", "frames"), [(7, 7), (1, 1)])
def test_a_queue_in_frames_holds_its_limit(route: RouteSocket, queue: int, frames: int) -> None:
    route.execute(shapers.requests(ONE, options(Impairment(rate=CRAWL, queue_frames=queue))))
    offer(200)
    qdisc = current_qdisc(route)
    assert qdisc.queued == frames
    assert qdisc.frames + qdisc.queued + qdisc.dropped == 200


def test_a_queue_in_bytes_holds_its_limit(route: RouteSocket) -> None:
    route.execute(shapers.requests(ONE, options(Impairment(rate=CRAWL, queue=10_000))))
    offer(500, size=100)
    assert current_qdisc(route).backlog == 10_000


def test_the_queue_can_be_counted_otherwise(route: RouteSocket) -> None:
    in_frames = options(Impairment(rate=CRAWL, queue_frames=7))
    in_bytes = options(Impairment(rate=CRAWL, queue=10_000))
    for requested, before, held in ((in_frames, None, 7), (in_bytes, in_frames, 100), (in_frames, in_bytes, 7)):
        route.execute(shapers.requests(ONE, requested, before))
        offer(500, size=100)
        assert current_qdisc(route).queued == held


def test_frames_are_counted_as_the_table_defines(route: RouteSocket) -> None:
    """Cells of 48 bytes with 5 of overhead, 8 for the trailer."""
    cells = Impairment(rate=10**10, overhead=8, cell_size=48, cell_overhead=5)
    route.execute(shapers.requests(ONE, options(cells)))
    offer(10, size=60)
    offer(10, size=1514)
    assert current_qdisc(route).bytes == 10 * 2 * 53 + 10 * 32 * 53


def test_no_more_than_the_rate_and_the_bucket_pass(route: RouteSocket) -> None:
    requested = options(Impairment(rate=80_000_000))
    start = time.monotonic_ns()
    route.execute(shapers.requests(ONE, requested))
    while time.monotonic_ns() - start < 300_000_000:
        offer(100, size=1514)
    passed = current_qdisc(route).bytes
    elapsed = time.monotonic_ns() - start
    assert passed <= requested.rate * elapsed / 1e9 + requested.burst
    assert current_qdisc(route).dropped > 0
    assert passed >= 0.5 * requested.rate * elapsed / 1e9  # this machine may be busy; the bound above is what holds


def test_capabilities_agree_with_doctor() -> None:
    capabilities = probe_capabilities()
    reported = {ability.name: ability.there for ability in probe()}
    assert (capabilities.netem, capabilities.tbf, capabilities.bpf) == (
        reported["netem"],
        reported["tbf"],
        reported["bpf classifier"],
    )
    assert capabilities.relay
    names = ("netem", "netem_seed", "netem_duplicate", "size_table", "tbf", "bpf", "relay")
    assert set(capabilities.reasons) == {name for name in names if not getattr(capabilities, name)}


def test_netem_is_accepted_where_it_was_found_and_else_refused_in_the_kernels_words(route: RouteSocket) -> None:
    refusal = pytest.raises(RequestError, match="No such file or directory")
    with nullcontext() if probe_capabilities().netem else refusal:
        route.execute([netem.request(ONE, netem.options_of(Impairment(delay=1), mtu=MTU))])
    assert (ONE in qdiscs.qdiscs(route)) is probe_capabilities().netem
