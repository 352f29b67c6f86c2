"""SSAM's fields in cells: for rules, filters and captures, as in the Scapy layer and the host's cells."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.l2 import Ether

from protocols.atm.cell import CELL, ETHERNET, Circuit, header, is_intact
from protocols.atm.fields import ETHERTYPE
from protocols.ssam import frames
from protocols.ssam.cells import ACKNOWLEDGEMENT, BYTES, DATA, REPLY, REQUEST, Message, unpack, with_crc
from protocols.ssam.fields import FIELDS
from testbed.fates.flows import Classifier
from testbed.fates.header_fields import Fields, SharedNumberError, locate
from testbed.fates.headers import standard_fields
from testbed.fates.rules import RuleSet
from testbed.fields import known_fields
from testbed.observe.format.frame_format import formatters
from testbed.observe.format.frame_labels import label
from testbed.observe.format.layers import format_layers
from testbed.spec.layout import Impairment
from tests.unit.fates.wire_frames import direction, run_schedule
from tests.unit.protocols.ssam_messages import fields_of, write_payload

ETHERNET_HEADER = bytes(12) + ETHERTYPE.to_bytes(2, "big")
CIRCUIT = Circuit(0, 33)
SUMMARIES = {
    REQUEST: "SSAM REQUEST 7 of session 3, handler 0x1234, 6 bytes",
    REPLY: "SSAM REPLY to 7 of session 3, handler 0x1234, 6 bytes",
    ACKNOWLEDGEMENT: "SSAM ACKNOWLEDGEMENT of 7 of session 3, handler 0x1234",
    BYTES: "SSAM BYTES 7 of session 3, 2 bytes",
}

messages = st.builds(
    Message,
    st.sampled_from([REQUEST, REPLY, ACKNOWLEDGEMENT]),
    st.integers(0, 255),
    st.integers(0, 63),
    st.integers(3, 0xFFFF_FFFF),
    st.binary(max_size=DATA),
)


def cell_of(message: Message, circuit: Circuit = CIRCUIT) -> bytes:
    payload = bytearray(CELL - 5)
    write_payload(payload, 0, message)
    return ETHERNET_HEADER + header(circuit) + with_crc(payload)


@given(messages)
def test_rules_and_scapy_read_the_hosts_values_in_a_cell(message: Message) -> None:
    frame = cell_of(message)
    fields, located = known_fields(), locate(frame)
    values = {name: fields.reader(f"ssam.{name}")(frame, located) for name in FIELDS}
    check = values.pop("check")
    expected_values = {
        "kind": message.kind,
        "session": message.session,
        "number": message.number,
        "handler": message.handler,
    }
    assert values == {**expected_values, "length": len(message.data) + 4}
    layer = Ether(frame)[frames.Ssam]
    assert {name: getattr(layer, name) for name in values} == values
    assert layer.check == check
    layer.check = None
    assert bytes(layer) == frame[ETHERNET + 5 :], "Scapy's layer computes the interface's check"


def test_the_fields_are_absent_in_a_cell_that_ends_before_them() -> None:
    frame = cell_of(Message(REQUEST, 3, 7, 1, b""))[: ETHERNET + 9]
    values = {name: known_fields().reader(f"ssam.{name}")(frame, locate(frame)) for name in FIELDS}
    assert values == {"kind": REQUEST, "session": 3, "number": 7, "handler": -1, "length": -1, "check": -1}


@pytest.mark.parametrize("kind", SUMMARIES)
def test_a_cell_is_described_by_its_kind(kind: int) -> None:
    frame = cell_of(Message(kind, 3, 7, 0x1234, b"hi"))
    assert label(frame).endswith(f" {SUMMARIES[kind]}, {ETHERNET + CELL} bytes")
    *_, atm, ssam = format_layers(frame)
    assert "vci 33" in atm
    assert ssam.startswith("SSAM: kind ")
    assert "session 3, number 7" in ssam


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (ETHERNET_HEADER + header(CIRCUIT) + b"x" * 48, "check"),
        (cell_of(Message(REQUEST, 3, 7, 1, b"hi"))[:-1], "short"),
        (ETHERNET_HEADER + header(CIRCUIT) + with_crc(bytes(46) + bytes((45 << 2, 0))), "check"),
    ],
)
def test_a_cell_without_a_message_is_described_as_a_cell(frame: bytes, reason: str) -> None:
    assert f" ATM vpi 0, vci 33, pti 0, clp 0, hec {frame[ETHERNET + 4]}, no SSAM ({reason})," in label(frame)


def delivered_cells(rule: str, frame: bytes) -> list[bytes]:
    """Return the cells that a link with a rule delivers, of three."""
    rules = RuleSet(known_fields())
    rules.add(0, rule)
    return [cell for _, cell in run_schedule(direction(Impairment(), rules=rules), [(now, frame) for now in range(3)])]


def message_in(frame: bytes) -> Message | None:
    return unpack(frame[ETHERNET + 5 :])


def test_a_rule_drops_cells_by_the_messages_fields() -> None:
    frame = cell_of(Message(REPLY, 3, 7, 1, b"hi"))
    assert len(delivered_cells("drop ssam.kind == REPLY and ssam.number == 7 and nth(2)", frame)) == 2
    assert len(delivered_cells("drop ssam.kind == REQUEST", frame)) == 3
    assert not delivered_cells("drop atm.vci == 33 and ssam.session == 3", frame)


def test_a_rule_that_sets_a_field_also_recomputes_the_checks() -> None:
    frame = cell_of(Message(REQUEST, 3, 7, 1, b"hi"))
    for changed_frame in delivered_cells("set ssam.handler = 0x99, ssam.session = 4, atm.clp = 1", frame):
        assert fields_of(message_in(changed_frame)) == (REQUEST, 4, 7, 0x99, b"hi")
        assert is_intact(changed_frame[ETHERNET:])
    for changed_frame in delivered_cells("set ssam.handler = 0x99, atm.clp = 1 keep-check", frame):
        assert message_in(changed_frame) is None
        assert not is_intact(changed_frame[ETHERNET:])
    short_cell = frame[:-1]
    assert delivered_cells("set ssam.handler = 0x99", short_cell)[0][-1] == short_cell[-1], (
        "an incomplete check is not recomputed"
    )


def test_cells_of_ssam_have_the_flows_of_their_circuits() -> None:
    classifier = Classifier(known_fields())
    flows = [
        classifier.of(cell_of(Message(kind, 1, number, 9, b""), circuit))[0]
        for circuit in (CIRCUIT, Circuit(0, 34))
        for kind in SUMMARIES
        for number in (1, 2)
    ]
    assert len(set(flows)) == 2


def test_one_header_at_most_is_registered_above_another_and_it_has_no_flow_key() -> None:
    def register(fields: Fields, name: str, **options: object) -> None:
        fields.register(name, 0x9A9B, {"kind": (5, 1)}, **options)  # type: ignore[arg-type]

    for order in (("below", "above"), ("above", "below")):
        fields = standard_fields()
        for name in order:
            register(fields, name, above="below" if name == "above" else "", flow=() if name == "above" else ("kind",))
        assert fields.flow_fields()[0x9A9B, b""] == ("below.kind",)
        with pytest.raises(SharedNumberError):
            register(fields, "another", above="below")
    with pytest.raises(ValueError, match="it must have no flow key"):
        register(standard_fields(), "above", above="below", flow=("kind",))


def test_cells_of_a_capture_are_dissected_as_ssam_on_atm() -> None:
    formatter = formatters()[ETHERTYPE].formatter_of(cell_of(Message(REQUEST, 0, 0, 9, b"")))
    assert formatter is not None
    assert formatter.name == "ssam"
    assert formatter.below is not None
    assert formatter.below.name == "atm"
