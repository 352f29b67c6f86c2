"""Packets of AM-II and of mappers on a simulated Myrinet: rules on named fields, flows, captures."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from protocols.am2 import codec as am2
from protocols.core.firmware import Adapter, Agent, Nic
from protocols.core.malformed import MalformedError
from protocols.myrinet.envelope import add_envelope, remove_envelope, stripped
from protocols.myrinet.mapper.mapper import Mapper, MapperIdentity
from testbed.fates.records import Record
from testbed.fates.rules import RuleSet
from testbed.fields import known_fields
from testbed.sim.recorder import CAPTURE
from testbed.sim.simulation import Simulation
from testbed.spec.elements import Link, Node, Switch
from testbed.spec.layout import Layout
from testbed.spec.model import Description
from testbed.spec.resolver import resolve
from tests.sim.myrinet_senders import Routes, tree_routes
from tests.sim.scapy_captures import read_capture

SECOND = 1_000_000_000
MESSAGES = 8
DATA = b"contents of a message"


def layout(loss: str = "0%") -> Layout:
    """Return a layout of three nodes at two switches; only the cable between the switches loses frames."""
    nodes = [Node(name=f"n{number}") for number in (1, 2, 3)]
    switches = [Switch(name=name, kind="myrinet") for name in ("s1", "s2")]
    links = [Link(ends=ends) for ends in (("n1", "s1:1"), ("n2", "s2:1"), ("n3", "s2:2"))]
    links.append(Link(ends=("s1:3", "s2:3"), loss=loss))
    return resolve(Description(name="two", nodes=nodes, switches=switches, links=links, seed=11))


class LetterFirmware:
    """Firmware that sends a message to a peer at each ring of the doorbell and acknowledges received ones. A mapper handles
    mapping packets."""

    def __init__(self, adapter: Adapter, nic: Nic, names: list[str], routes: Routes) -> None:
        self._adapter, self._nic = adapter, nic
        self._names, self._routes = names, routes
        self._mapper = Mapper(MapperIdentity(adapter.number, 1, adapter.address), nic.send, lambda _: None)
        self._mapper.start(0)
        self.sent = 0
        self.acknowledged = 0

    @property
    def deadline(self) -> int | None:
        return self._mapper.deadline

    def on_timer(self, now: int) -> None:
        self._mapper.on_timer(now)

    def on_doorbell(self, now: int, index: int) -> None:  # noqa: ARG002
        self.sent += 1
        fields = (am2.REASON_NONE, self._adapter.number, index, 1, 1, 2, 0, self.sent & 1, self.sent)
        header = (am2.FORM_MEDIUM, 0, 7, 0, 3, 4, 99, self.sent, 0, len(DATA))
        self._post(index, am2.pack_message(*self._macs(index), *fields, *header, DATA))

    def receive(self, now: int, frame: bytes) -> None:
        try:
            raw = remove_envelope(frame)
        except MalformedError:
            return
        if not raw.startswith(am2.BEGINS, 14):
            self._mapper.receive(now, frame)
        elif am2.kind_of(raw) == am2.KIND_MESSAGE:
            _, _, _, source, number, _, _, channel, generation, sequence, stamp, *_ = am2.unpack_message(raw)
            header = (number, source, 1, 1, channel, generation, sequence, stamp)
            self._post(source, am2.pack_answer(*self._macs(source), am2.KIND_ACK, am2.REASON_NONE, *header))
        else:
            self.acknowledged += 1

    def _macs(self, index: int) -> tuple[bytes, bytes]:
        return self._adapter.addresses[index], self._adapter.address

    def _post(self, index: int, frame: bytes) -> None:
        self._nic.send(add_envelope(frame, self._routes[self._names[self._adapter.number], self._names[index]]))

    def counter_values(self) -> Mapping[str, int]:
        return {}

    def pending_work(self) -> list[str]:
        return []


class NullHost:
    def on_completion(self, index: int) -> None:  # noqa: ARG002
        raise AssertionError("firmware without completions")

    def pending_work(self) -> list[str]:
        return []


class LetterPlug:
    """Builds the firmwares, and runs a simulation in which n1 sends messages to n2."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.firmwares: list[LetterFirmware] = []

    def __call__(self, adapter: Adapter, nic: Nic) -> Agent:
        names = [node.name for node in self.layout.nodes]
        self.firmwares.append(LetterFirmware(adapter, nic, names, tree_routes(self.layout)))
        return Agent(self.firmwares[-1], NullHost())

    def run(self, rules: RuleSet | None = None, folder: Path | None = None) -> list[Record]:
        log: list[Record] = []
        with Simulation(self.layout, self, rules=rules, folder=folder, log=log.append) as simulation:
            node = simulation.nodes["n1"]
            for number in range(MESSAGES):
                simulation.run_until(number * SECOND // 10)
                node.nic.ring_doorbell(1, 0, 0)
            simulation.run_until(SECOND)
        return log


def test_a_rule_drops_the_third_acknowledgement_and_no_packet_of_mapping() -> None:
    rules = RuleSet(known_fields())
    rules.add(0, 'drop am2.kind == ACK and nth(3) and link == "s1:3--s2:3"')
    network = LetterPlug(layout())
    (lost_record,) = network.run(rules)
    assert network.firmwares[0].acknowledged == MESSAGES - 1
    assert (lost_record.direction, lost_record.flow.key, lost_record.n) == ("backward", (4, am2.KIND_ACK, 2), 3)


def test_rules_on_mapping_packets_do_not_affect_am2s_packets() -> None:
    rules = RuleSet(known_fields())
    rules.add(0, "drop mapper.kind in (PROBE, LOOP) and first(4)")
    rules.add(0, "delay 1us myrinet.type == 5 and not mapper.kind == PROBE and nth(1)")
    network = LetterPlug(layout())
    log = network.run(rules)
    assert {record.flow.key[0] for record in log} == {5}
    assert {record.cause for record in log} == {"rule"}
    assert network.firmwares[0].acknowledged == MESSAGES


@pytest.mark.requires("interpreted")
def test_the_fates_of_am2s_packets_do_not_depend_on_mapping_packets() -> None:
    """The losses of AM-II's messages are the same if all mapping packets are dropped."""
    log = LetterPlug(layout(loss="50%")).run()
    keys = Counter(record.flow.key[0] for record in log)
    assert keys[4]
    assert keys[5]
    rules = RuleSet(known_fields())
    rules.add(0, "drop mapper")
    losses = [record for record in LetterPlug(layout(loss="50%")).run(rules) if record.cause == "loss"]

    def select_messages(records: list[Record]) -> list[Record]:
        return [record for record in records if record.flow.key[:2] == (4, am2.KIND_MESSAGE)]

    assert select_messages(losses) == select_messages(log) != []


# Captures


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    rules = RuleSet(known_fields())
    rules.add(0, 'corrupt 1 am2.kind == MESSAGE and nth(2) and link == "s1:3--s2:3"')
    rules.add(0, 'drop am2.kind == ACK and nth(1) and link == "s1:3--s2:3"')
    LetterPlug(layout()).run(rules, folder)
    return folder / CAPTURE


def decode(*arguments: object) -> str:
    program = "from testbed.cli.main import main; main()"
    command = [sys.executable, "-c", program, "decode", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


def test_decoded_frames_show_their_remaining_routes_and_fates(recorded: Path) -> None:
    lines = decode(recorded, "--filter", "am2").splitlines()
    sent_lines = [line for line in lines if " n1:eth0 out " in line]
    assert len(sent_lines) == MESSAGES
    text = "AM-II MEDIUM message 1 of endpoint 0.3 to 1.4, handler 7, 21 bytes, channel 2 sequence 1, route +2 -2, 96 bytes"
    assert sent_lines[0].endswith(text)
    (dropped,) = [line for line in lines if "dropped by rule" in line]
    assert "AM-II ACK channel 2 sequence 1, route -2, " in dropped
    broken = [line for line in lines if "wrong CRC-8" in line]
    assert len(broken) == 1, "the corrupted frame is marked once, at its receiver"
    assert " n2:eth0 in " in broken[0]


def test_every_frame_is_decoded_as_am2_or_as_mapping(recorded: Path) -> None:
    lines = decode(recorded, "--json").splitlines()
    facts = [json.loads(line) for line in lines]
    frames = read_capture(recorded)
    assert len(facts) == len(frames)
    expected = ["am2" if stripped(raw)[0][14:16] == am2.BEGINS else "mapper" for _, _, raw, _ in frames]
    assert [fact["protocol"] for fact in facts] == expected
    assert set(expected) == {"am2", "mapper"}
    assert all(fact["fields"]["myrinet.type"] in (4, 5) for fact in facts)
    probes = decode(recorded, "--filter", "mapper.kind == PROBE").splitlines()
    assert probes
    assert all("mapping PROBE" in line for line in probes)


def test_verbose_output_has_a_line_for_each_layer_and_marks_a_wrong_crc(recorded: Path) -> None:
    text = decode(recorded, "-v", "--filter", "am2.kind == MESSAGE")
    layers = Counter(line.strip().partition(":")[0] for line in text.splitlines() if line.startswith("    "))
    assert layers["Myrinet"] == layers["AM-II"] == layers["Ethernet"] == layers["AM-II message"]
    assert "    Myrinet: source_route +2 -2, type 0x4, crc8 0x" in text
    assert text.count(", wrong: it would be 0x") == 1


def test_messages_are_listed_with_their_packets_and_acknowledgements(recorded: Path) -> None:
    heads = decode(recorded, "--messages").splitlines()
    assert [line.split()[1] for line in heads] == [f"n1/n2/3.{number}" for number in range(1, MESSAGES + 1)]
    assert "AM2, 21 bytes, 1 frame, 1 acknowledgement, 1 lost, in " in heads[0]
    assert "AM2, 21 bytes, 1 frame, in " in heads[1], "a corrupted frame is acknowledged"
    assert all("1 frame, 1 acknowledgement, in " in head for head in heads[2:])
