"""A simulated link direction agrees with the wire model."""

from __future__ import annotations

from functools import partial

from hypothesis import example, given
from hypothesis import strategies as st

from testbed import fabrics
from testbed.engine.loop import Loop, VirtualClock
from testbed.fabric.direction import LinkDirection
from testbed.fates.flows import Classifier
from testbed.fates.records import Record
from testbed.fates.stage import FateOptions
from testbed.fields import known_fields
from testbed.sim.sim_direction import Driver, SimDirection
from testbed.spec.layout import End, Impairment, Link

HEADS = [bytes.fromhex(f"02000000000{to}02000000000{by}88b501{kind:02x}") for to, by in ("12", "31") for kind in (1, 2)]


def impairment(
    delay: int, rate: int, queue: tuple[int, int], loss: float, overhead: int, duplicate: float, reorder: float
) -> Impairment:
    """Build a valid impairment. queue: bytes and frames. A queue and an overhead need a rate, reordering needs a delay."""
    octets, frames = queue if rate else (0, 0)
    return Impairment(
        delay=delay,
        rate=rate,
        queue=octets,
        queue_frames=frames,
        loss=loss,
        overhead=overhead if rate else 0,
        duplicate=duplicate,
        reorder=reorder if delay else 0.0,
    )


IMPAIRMENTS = st.builds(
    impairment,
    st.sampled_from([0, 300, 5_000]),
    st.sampled_from([0, 10**9, 7_777_777_777, 10**10]),
    st.sampled_from([(0, 0), (3_000, 0), (0, 3)]),
    st.sampled_from([0.0, 0.0, 0.3]),
    st.sampled_from([0, 0, 24, -14]),
    st.sampled_from([0.0, 0.0, 0.0, 0.2]),
    st.sampled_from([0.0, 0.0, 0.0, 0.2]),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.integers(0, 2_000), st.tuples(st.sampled_from(HEADS), st.integers(0, 1_400))),
        st.tuples(st.integers(0, 2_000), st.tuples(st.sampled_from(HEADS), st.integers(0, 1_400))),
        st.tuples(st.integers(0, 9_000), IMPAIRMENTS),
    ),
    max_size=80,
)


@example(  # the third frame is offered when the second one, queued after the first, is due
    Impairment(delay=300), [(0, (HEADS[0], 57)), (61, (HEADS[0], 1_000)), (300, (HEADS[0], 41))]
)
@given(IMPAIRMENTS, STEPS)
def test_arrivals_and_counters_equal_those_of_the_wire_model(
    first: Impairment, steps: list[tuple[int, tuple[bytes, int] | Impairment]]
) -> None:
    fields = known_fields()
    logs: tuple[list[Record], list[Record]] = ([], [])
    link = Link(End("a", "0"), End("b", "0"), forward=first)
    model = LinkDirection(link.name, "forward", first, FateOptions(seed=3, fields=fields, log=logs[0].append))
    loop = Loop(VirtualClock())
    direction = join(loop, link, FateOptions(3, fields=fields, classifier=Classifier(fields), log=logs[1].append))
    expected: list[tuple[int, bytes]] = []
    arrived: list[tuple[int, bytes]] = []
    direction.set_receiver(lambda now, frame: arrived.append((now, frame)))

    def pass_time(end: int) -> None:
        """Run the loop and the model until `end`, inclusive."""
        while model.deadline is not None and model.deadline <= end:
            expected.extend(model.poll(model.deadline))
        while True:  # an event of that time may only be scheduled by an earlier one
            loop.at(end, lambda _: loop.stop())
            loop.run()
            next_time = loop.events.next_time()
            if next_time is None or next_time > end:
                break

    now = 0
    for number, (pause, action) in enumerate(steps):
        now += pause
        pass_time(now)
        if isinstance(action, Impairment):
            model.change(now, action)
            direction.change(now, action)
        else:
            head, size = action
            frame = head + number.to_bytes(2, "big") + bytes(size)
            model.offer(now, frame)
            direction.enter(now, frame)
        assert (direction.in_flight, direction.counters.by_name()) == (model.in_flight, model.counters.by_name())
    pass_time(now + 10**9)
    assert arrived == expected
    assert direction.counters.by_name() == model.counters.by_name()
    assert logs[0] == logs[1]


def join(loop: Loop, link: Link, options: FateOptions) -> SimDirection:
    """Add the forward direction of a link to an Ethernet that runs on a loop."""
    network = fabrics.fabric("ethernet").network()
    driver = Driver(loop, network)
    return SimDirection(link, "forward", network.join(link.name, "forward", link.forward, options), driver)


def build_direction(impairment: Impairment) -> tuple[Loop, SimDirection, list[int]]:
    """Return a direction with its loop, and a list that arrival times are added to."""
    loop, fields = Loop(VirtualClock()), known_fields()
    link = Link(End("a", "0"), End("b", "0"), forward=impairment)
    direction = join(loop, link, FateOptions(3, fields=fields, classifier=Classifier(fields)))
    arrived: list[int] = []
    direction.set_receiver(lambda now, _: arrived.append(now))
    return loop, direction, arrived


def test_a_frame_with_a_shorter_delay_does_not_overtake_those_in_flight() -> None:
    loop, direction, arrived = build_direction(Impairment(delay=10_000))
    direction.enter(0, bytes(60))
    direction.enter(0, bytes(60))
    direction.change(0, Impairment(delay=10))
    direction.enter(0, bytes(60))
    loop.at(20_000, lambda now: direction.enter(now, bytes(60)))
    loop.run()
    assert arrived == [10_000, 10_000, 10_000, 20_010]


def test_a_change_without_restart_continues_the_count_of_a_loss_pattern() -> None:
    loop, direction, arrived = build_direction(Impairment(loss=1e-9, delay=10))
    for _ in range(3):
        direction.enter(0, bytes(60))
    direction.change(0, Impairment(loss_pattern="5", delay=10), restart=False)
    for _ in range(3):
        direction.enter(0, bytes(60))
    loop.run()
    assert (len(arrived), direction.counters.loss_pattern) == (5, 1)


def test_a_receiver_may_send_frames_in_the_same_direction() -> None:
    loop, direction, arrived = build_direction(Impairment(delay=10))

    def send_again(now: int, frame: bytes) -> None:
        arrived.append(now)
        if len(arrived) < 3:
            direction.enter(now, frame)
            direction.enter(now, frame)

    direction.set_receiver(send_again)
    direction.enter(0, bytes(60))
    loop.run()
    assert arrived == [10, 20, 20, 30, 30]
    assert not loop.events


def test_a_restored_link_delivers_frames_again() -> None:
    loop, direction, arrived = build_direction(Impairment(delay=10_000))

    def cut_and_send(now: int, is_cut: bool) -> None:
        direction.is_cut = is_cut
        direction.enter(now, bytes(60))

    for start, is_cut in ((0, False), (1_000, True), (2_000, False)):
        loop.at(start, partial(cut_and_send, is_cut=is_cut))
    loop.run()
    assert arrived == [10_000, 12_000]
    assert (direction.lost, direction.in_flight, direction.counters.offered, direction.counters.delivered) == (
        1,
        0,
        2,
        2,
    )
