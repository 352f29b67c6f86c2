"""Rules and fates of packets that share Myrinet's EtherType on a running cluster: by kind and channel, as in the model."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from protocols.am2 import codec as am2
from protocols.myrinet.envelope import add_envelope
from protocols.myrinet.fields import ETHERTYPE
from protocols.myrinet.mapper import codec as mapper
from testbed import Cluster
from testbed.fabric.direction import LinkDirection
from testbed.fates.records import Record
from testbed.fates.rules import RuleSet
from testbed.fates.stage import FateOptions
from testbed.fields import known_fields
from testbed.runtime.logs import read_log
from testbed.spec.layout import Impairment
from testbed.spec.resolver import resolve
from tests.live import node_sockets
from tests.live.machine_state import eventually
from tests.live.traffic import relay_report

pytestmark = [pytest.mark.requires("root"), pytest.mark.usefixtures("machine")]

RULE = "drop am2.kind == ACK and am2.channel == 1 and nth(3)"
ROUTES = [b"", b"\x81", b"\xbf\x81"]


def packets(destination: bytes, source: bytes) -> list[bytes]:
    """Return 40 distinct packets of each type: two AM-II channels, mapper, unclaimed type, remaining route."""
    sent = []
    for number in range(40):
        fields = (am2.REASON_NONE, 1, 2, 3, 4, number % 2, 0, number & 1, number)
        frames = [
            am2.pack_answer(destination, source, am2.KIND_ACK, *fields),
            mapper.pack_frame(destination, source, mapper.KIND_HINT, 0, 0, 1, number, 0, 0, 0, 0),
            destination + source + ETHERTYPE.to_bytes(2, "big") + b"\0\7" + number.to_bytes(2, "big"),
        ]
        sent += [add_envelope(frame, ROUTES[number % 3]) for frame in frames]
    return sent


def fates(records: Iterable[Record]) -> list[tuple[tuple[int, ...], int, str]]:
    """Return (flow key, number in its flow, cause) of each forward loss."""
    return [(record.flow.key, record.n, record.cause) for record in records if record.direction == "forward"]


def test_packets_of_every_type_have_the_models_fates_and_a_rule_matches_one_type(tmp_path: Path) -> None:
    description, log = Cluster.back_to_back(seed=5), tmp_path / "fates.jsonl"
    with (
        description.up(fates=log) as cluster,
        cluster.inject("all", loss="20%", rules=[RULE]),
        node_sockets.nic_sockets(cluster) as nics,
    ):
        sent = packets(node_sockets.mac(cluster, "n2"), node_sockets.mac(cluster, "n1"))
        for frame in sent:
            nics["n1"].send(frame)

        def all_offered() -> bool:
            ((_, direction_report),) = relay_report(cluster)["links"].items()
            return bool(direction_report["forward"]["counters"]["offered"] == len(sent))

        eventually(all_offered, "the relay has processed all packets")
    rules, expected = RuleSet(known_fields()), list[Record]()
    rules.add(0, RULE)
    link = resolve(description).links[0].name
    model = LinkDirection(link, "forward", Impairment(loss=0.2), FateOptions(seed=5, rules=rules, log=expected.append))
    for frame in sent:
        model.offer(0, frame)
    assert fates(read_log(log)) == fates(expected)
    assert {(len(key), cause) for key, _, cause in fates(expected)} == {
        (3, "loss"),
        (3, "rule"),
        (2, "loss"),
        (0, "loss"),
    }
    assert [key for key, _, cause in fates(expected) if cause == "rule"] == [(4, am2.KIND_ACK, 1)]
