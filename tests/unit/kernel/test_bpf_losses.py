"""The BPF loss program decides the same fate as the link model for every frame, flow and cause."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.errors import UnsupportedError
from testbed.fabric.direction import LinkDirection
from testbed.fates import fate_hash
from testbed.fates.flows import Flow, flow_of
from testbed.fates.header_fields import ETHERNET_HEADER, MAX_HOPS, Fields
from testbed.fates.headers import standard_fields
from testbed.fates.stage import FateOptions
from testbed.kernel import loss_classifier
from testbed.kernel.loss_classifier import Classifier, losses_of, name_of, refusal
from testbed.kernel.loss_program import TC_ACT_SHOT, TC_ACT_UNSPEC
from testbed.spec.layout import Impairment
from tests.unit.fates.wire_frames import A, B, C, arp, ethernet, ipv4, ipv6, ports, tagged, tcp, udp
from tests.unit.kernel.bpf_runs import run_on

LINK = "n1:eth0--s1:1"
SEED = 0xFEED_BEEF_1234_5678
KEY = fate_hash.direction_key(SEED, LINK, "backward")
PLAIN, KEYED, TAG = 0x88B5, 0x88B6, 0x88A8


def protocols() -> Fields:
    """Return flow keys of all shapes: none, masks, guards, fields of up to eight bytes, and a tag's EtherType."""
    fields = standard_fields()
    fields.register("plain", PLAIN, {"type": (0, 1)})
    fields.register(
        "keyed",
        KEYED,
        {
            "type": (0, 1),
            "flags": (1, 1, 0x30),
            "channel": (2, 2, 0x0FF0),
            "id": (4, 3, 0, [("type", 3)]),
            "deep": (7, 4, 0, [("id", 5), ("flags", 1)]),
            "never": (0, 1, 0, [("type", 256)]),
            "long": (8, 8, 0xFFFF_FFFF_FFFF_FFF0),
        },
        flow=["type", "channel", "id", "deep", "never", "long"],
    )
    fields.register("tag", TAG, {"word": (0, 2)}, flow=["word"])
    return fields


FIELDS = protocols()
READERS = FIELDS.flow_readers()


def random_frame(rng: random.Random) -> bytes:
    """Return a frame of any kind, of a few flows, sometimes truncated or with a changed byte."""
    values = [1, 2, 3, 5, 80, 256, 5001]
    payload = bytes(rng.choice([0, 0, 1, 3, 255]) for _ in range(rng.randrange(40)))
    pair = ports(rng.choice(values), rng.choice(values)) + payload
    macs = rng.choice([(A, B), (B, A), (A, C), (A, (1 << 48) - 1)])
    offset = rng.choice([0, 0, 0, 0x4000, 0x2000, 0x2001, 0x1F00, 1])
    options = bytes(rng.choice([0, 0, 4, 40]))
    protocol = rng.choice([6, 17, 1, 58, 0, 255])
    makers: Sequence[Callable[[], bytes]] = [
        lambda: udp(rng.choice(values), rng.choice(values), payload, offset=offset, macs=macs),
        lambda: tcp(rng.choice(values), rng.choice(values), data=payload, options=options, macs=macs),
        lambda: ipv4(pair, protocol, options=options, offset=offset, macs=macs),
        lambda: ipv6(pair, protocol),
        lambda: ipv6(b"\x06\0\0\0\0\0\0\0" + pair, rng.choice([0, 43, 44])),  # extension headers
        lambda: ethernet(bytes([0x40 | rng.randrange(8)]) + udp(data=payload)[15:], ethertype=0x0800),
        arp,
        lambda: ethernet(payload, ethertype=PLAIN, source=macs[0], destination=macs[1]),
        lambda: ethernet(bytes([rng.choice([3, 4]), rng.choice([0x10, 0x20])]) + payload, ethertype=KEYED),
        lambda: ethernet(b"\x03\x1f\xab\xcd\0\0\x05" + bytes(rng.choice([3, 4, 20])), ethertype=KEYED),
        lambda: ethernet(payload, ethertype=rng.choice([0, 46, 0x05FF, 0x0600, 0x9000, 0x0800, 0x86DD])),
        lambda: ethernet(rng.randbytes(rng.randrange(60)), ethertype=rng.choice([0x0800, 0x86DD, KEYED])),
    ]
    frame = rng.choice(makers)()
    for _ in range(rng.choice([0, 0, 0, 0, 1, 2, 3])):
        frame = tagged(frame, rng.choice([0, 1, 4095]), rng.randrange(8), rng.choice([0x8100, 0x88A8]))
    if rng.random() < 0.1:
        frame = frame[: rng.randrange(ETHERNET_HEADER, len(frame) + 1)]
    if rng.random() < 0.1 and len(frame) > ETHERNET_HEADER:
        position = rng.randrange(12, len(frame))
        frame = frame[:position] + rng.randbytes(1) + frame[position + 1 :]
    return frame


def runnable(frame: bytes) -> bytes:
    """Return a frame that BPF_PROG_TEST_RUN accepts: it rejects truncated IP headers, unless they follow a VLAN tag."""
    shortest = {b"\x08\x00": 34, b"\x86\xdd": 54}.get(frame[12:14], 0)
    return frame if len(frame) >= shortest else tagged(frame, 1)


def compare(impairment: Impairment, frames: Iterable[bytes], fields: Fields = FIELDS) -> Classifier:
    """Compare the fate of each frame, and then all counters, with the model. Return the closed classifier."""
    model = LinkDirection(LINK, "backward", impairment, FateOptions(seed=SEED, fields=fields))
    readers = fields.flow_readers()
    flows: Counter[Flow] = Counter()
    lost_bytes = 0
    with loss_classifier.load(losses_of(KEY, impairment, fields)) as classifier:
        for n, frame in enumerate(map(runnable, frames), 1):
            dropped = model.offer(n, frame).dropped
            model.poll(n)
            result = run_on(classifier.program, frame).result
            flow = flow_of(frame, readers)
            assert result == (TC_ACT_SHOT if dropped else TC_ACT_UNSPEC), f"frame {n}: {flow} {frame.hex()}"
            flows[flow] += 1
            lost_bytes += len(frame) * dropped
        counts = classifier.counters()
        assert (counts.offered, counts.loss, counts.gemodel, counts.loss_pattern, counts.lost_bytes) == (
            model.counters.offered, model.counters.loss, model.counters.gemodel, model.counters.loss_pattern, lost_bytes,
        )  # fmt: skip
        assert counts.lost == model.counters.dropped
        assert counts.is_exact
        assert classifier.flows() == (flows if impairment.loss else {})
    return classifier


@pytest.mark.requires("bpf")
def test_frames_with_a_source_route_have_the_models_fates() -> None:
    fields = standard_fields()
    fields.register("wormhole", KEYED, {"type": (0, 2), "channel": (2, 1)}, flow=["type", "channel"], routed=True)
    rng = random.Random("source routes")
    lengths = [0, 0, 1, 2, 5, MAX_HOPS - 1, MAX_HOPS, MAX_HOPS + 1]
    frames = []
    for _ in range(2_000):
        route = bytes(rng.randrange(0x80, 0x100) for _ in range(rng.choice(lengths)))
        rest = bytes([0, rng.choice([4, 5]), rng.randrange(3)])[: rng.choice([1, 2, 3, 3, 3])]
        frame = ethernet(route + rest, ethertype=KEYED)
        frames.append(tagged(frame, 5) if rng.random() < 0.1 else frame)
    compare(Impairment(loss=0.3), frames, fields)


@pytest.mark.requires("bpf")
@pytest.mark.parametrize("common", [(), ("credit",)])
def test_frames_of_protocols_that_share_an_ethertype_have_the_models_fates(common: tuple[str, ...]) -> None:
    fields = standard_fields()
    fields.register("data", KEYED, {"channel": (2, 1)}, flow=["channel"], routed=True, begins=b"\0\4")
    fields.register("map", KEYED, {"kind": (2, 1)}, flow=[], routed=True, begins=b"\0\5")
    fields.register("all", KEYED, {"credit": (3, 1)}, flow=common, routed=True)
    rng = random.Random("shared")
    frames = []
    for _ in range(2_000):
        route = bytes(rng.randrange(0x80, 0x100) for _ in range(rng.choice([0, 1, 3])))
        rest = bytes([0, rng.choice([4, 5, 6]), rng.randrange(3), rng.randrange(2)])
        frames.append(ethernet(route + rest[: rng.choice([1, 2, 3, 4, 4, 4])], ethertype=KEYED))
    compare(Impairment(loss=0.3), frames, fields)
    keys = {flow_of(frame, fields.flow_readers()).key for frame in frames}
    assert {(4, 0), (4, 2), (5,), ((1,) if common else ())} <= keys


@pytest.mark.requires("bpf")
@pytest.mark.parametrize("loss", [0.05, 0.5, 1.0])
def test_thousands_of_frames_of_every_kind_have_the_models_fates(loss: float) -> None:
    rng = random.Random(f"frames {loss}")
    frames = [random_frame(rng) for _ in range(8_000)]
    compare(Impairment(loss=loss), frames)
    kinds = {(flow.ethertype, len(flow.key)) for flow in (flow_of(frame, READERS) for frame in frames)}
    # Every path of the program was taken: lengths, IP, each protocol, a third tag.
    assert {
        (0, 0),
        (0x0800, 2),
        (0x86DD, 2),
        (0x0806, 0),
        (PLAIN, 0),
        (KEYED, 6),
        (0x8100, 0),
        (TAG, 1),
    } <= kinds


@pytest.mark.requires("bpf")
def test_arbitrary_bytes_after_the_addresses_have_the_models_fates() -> None:
    types = st.sampled_from([0x0800, 0x86DD, 0x8100, 0x88A8, KEYED, 0x05FF, 0x0600])
    bodies = st.builds(lambda kind, body: ethernet(body, ethertype=kind), types, st.binary(max_size=80))
    any_bytes = st.binary(min_size=ETHERNET_HEADER, max_size=80)

    @given(st.lists(st.one_of(bodies, any_bytes), min_size=1, max_size=40), st.floats(0.01, 1.0))
    def check_fates(frames: list[bytes], loss: float) -> None:
        compare(Impairment(loss=loss), frames)

    check_fates()


@pytest.mark.requires("bpf")
@pytest.mark.parametrize("key", ["zero", "largest"])
def test_the_hash_has_no_weak_key(key: str) -> None:
    """Words with the highest bit set must not be loaded as sign-extended immediates."""
    number = {"zero": 0, "largest": fate_hash.MASK}[key]
    for loss in (2.0**-53, 0.3, 1 - 2.0**-53):
        losses = losses_of(number, Impairment(loss=loss))
        start = fate_hash.absorb(fate_hash.flow_key(number, PLAIN, B, A, ()), fate_hash.LOSS)
        with loss_classifier.load(losses) as classifier:
            for n in range(1, 300):
                is_lost = fate_hash.draw(start, n) >> 11 < fate_hash.threshold(loss)
                assert (run_on(classifier.program, ethernet(bytes(46))).result == TC_ACT_SHOT) == is_lost


@pytest.mark.requires("bpf")
@pytest.mark.parametrize(
    "parameters",
    [(0.05, 0.3, 1.0, 0.0), (0.1, 0.2, 0.7, 0.02), (1.0, 1.0, 1.0, 0.0), (0.0, 0.0, 0.5, 0.5), (1, 0, 1, 0)],
)
def test_gilbert_elliott_steps_as_the_model_does(parameters: tuple[float, ...]) -> None:
    frames = [ethernet(bytes(46), source=A + n % 3) for n in range(3_000)]
    compare(Impairment(gemodel=parameters), frames)


@pytest.mark.requires("bpf")
@pytest.mark.parametrize(
    "pattern",
    [
        "1",
        "5, 12, 24",
        "3 every 10",
        "1-4, 9 every 9",
        "100-250",
        "1-7 every 7",
        "999999999",
        "2, 3, 5, 7, 11, 13 every 30",
    ],
)
def test_a_pattern_loses_the_models_numbers(pattern: str) -> None:
    compare(Impairment(loss_pattern=pattern), [ethernet(bytes(46))] * 400)


@pytest.mark.requires("bpf")
def test_the_longest_pattern_is_accepted() -> None:
    numbers = [3 * number + number % 2 for number in range(1, loss_classifier.MAX_RANGES + 1)]
    pattern = f"{', '.join(map(str, numbers))} every 3100"
    assert refusal(Impairment(loss_pattern=pattern)) == ""
    compare(Impairment(loss_pattern=pattern), [ethernet(bytes(46))] * 6_500)


@pytest.mark.requires("bpf")
def test_three_loss_models_together_have_the_models_causes() -> None:
    rng = random.Random("together")
    impairment = Impairment(loss=0.2, gemodel=(0.1, 0.3, 0.9, 0.05), loss_pattern="2, 5-6 every 8")
    compare(impairment, [random_frame(rng) for _ in range(4_000)])


@pytest.mark.requires("bpf")
def test_direction_and_seed_decide_which_frames_are_lost() -> None:
    results = set()
    for seed, direction in ((SEED, "forward"), (SEED, "backward"), (SEED + 1, "backward")):
        losses = losses_of(fate_hash.direction_key(seed, LINK, direction), Impairment(loss=0.5))
        with loss_classifier.load(losses) as classifier:
            results.add(tuple(run_on(classifier.program, ethernet()).result for _ in range(64)))
    assert len(results) == 3


@pytest.mark.requires("bpf")
def test_a_full_flow_table_is_counted_and_its_flows_keep_their_fates() -> None:
    impairment = Impairment(loss=0.5)
    model = LinkDirection(LINK, "backward", impairment, FateOptions(seed=SEED))
    flows = [ethernet(source=source) for source in (A, B, C)]
    with loss_classifier.load(losses_of(KEY, impairment), flows=3) as classifier:
        for frame in flows:
            assert (run_on(classifier.program, frame).result == TC_ACT_SHOT) == model.offer(0, frame).dropped
        lost_count = 0
        for n in range(4_000):
            lost_count += run_on(classifier.program, ethernet(source=C + 1 + n % 50)).result == TC_ACT_SHOT
            frame = flows[n % 3]
            assert (run_on(classifier.program, frame).result == TC_ACT_SHOT) == model.offer(0, frame).dropped
        counts = classifier.counters()
        assert counts.untold == 4_000
        assert not counts.is_exact
        assert 1_845 < lost_count < 2_155  # 4.9 standard deviations around a half
        assert len(classifier.flows()) == 3


@pytest.mark.requires("bpf")
def test_a_new_program_starts_new_counters_or_continues_the_previous_ones() -> None:
    losses = losses_of(KEY, Impairment(loss=0.5))
    with loss_classifier.load(losses) as first:
        fates = [run_on(first.program, ethernet()).result for _ in range(50)]
        with loss_classifier.load(losses, first.maps["counters"]) as second:
            assert [run_on(second.program, ethernet()).result for _ in range(50)] == fates
            assert second.counters() == first.counters()
            assert second.counters().offered == 100
            assert set(second.flows().values()) == {50}
        with loss_classifier.load(losses) as third:
            assert third.counters().offered == 0


def test_the_name_of_a_program_identifies_its_decisions() -> None:
    impairments = [
        Impairment(loss=0.1),
        Impairment(loss=0.2),
        Impairment(loss_pattern="1"),
        Impairment(loss_pattern="1 every 2"),
        Impairment(gemodel=(0.1, 0.2, 1.0, 0.0)),
    ]
    names = {name_of(losses_of(key, impairment, FIELDS)) for impairment in impairments for key in (KEY, KEY + 1)}
    names.add(name_of(losses_of(KEY, Impairment(loss=0.1))))  # other flow keys
    assert len(names) == 11
    # Parameters that do not change decisions do not change the name.
    equivalent = [
        (Impairment(loss=0.1, rate=10**6, queue=3000), Impairment(loss=0.1)),
        (Impairment(loss_pattern="1, 2, 3"), Impairment(loss_pattern="1-3")),
    ]
    for first, second in equivalent:
        assert name_of(losses_of(KEY, first)) == name_of(losses_of(KEY, second))
    assert all(len(name) < 64 for name in names)


def test_impairments_beyond_the_classifier_are_rejected_with_the_reason() -> None:
    loss = Impairment(loss=0.1)
    assert refusal(loss, FIELDS) == ""
    assert refusal(Impairment(loss_pattern=", ".join(str(3 * n) for n in range(1, 1_002)))) == (
        "the loss pattern has 1,001 ranges, and the classifier takes at most 1,000"
    )
    many_fields = standard_fields()
    many_fields.register("many", PLAIN, {f"f{n}": (n, 1) for n in range(17)}, flow=[f"f{n}" for n in range(17)])
    assert (
        refusal(loss, many_fields)
        == "the flow key of EtherType 0x88b5 has 17 fields, and the classifier takes at most 16"
    )
    assert refusal(Impairment(loss_pattern="1"), many_fields) == ""  # a pattern needs no flow
    for flow in ("wide", "id"):
        wide_fields = standard_fields()
        wide_fields.register("own", PLAIN, {"wide": (0, 9), "id": (9, 1, 0, [("wide", 1)])}, flow=[flow])
        assert refusal(loss, wide_fields) == "the flow key needs the field own.wide, wider than 8 bytes"
        with pytest.raises(UnsupportedError, match="wider than"):
            losses_of(KEY, loss, wide_fields)
    with pytest.raises(ValueError, match="nothing is lost"):
        loss_classifier.load(losses_of(KEY, Impairment(delay=5)))


@pytest.mark.requires("bpf")
def test_the_largest_flow_key_fits_the_programs_stack() -> None:
    fields = standard_fields()
    fields.register("many", PLAIN, {f"f{n}": (n, 8) for n in range(16)}, flow=[f"f{n}" for n in range(16)])
    rng = random.Random("large")
    frames = [ethernet(bytes(rng.choice([0, 1]) for _ in range(rng.randrange(30)))) for _ in range(500)]
    compare(Impairment(loss=0.3), frames, fields)
