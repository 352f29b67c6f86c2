"""ATM cells: their headers, the check of a header, and the circuits between nodes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.l2 import Ether
from scapy.packet import Raw

from protocols.atm.cell import (
    CELL,
    ETHERNET,
    FIRST_VCI,
    MAX_NODES,
    PAYLOAD,
    Circuit,
    cells_of,
    circuit,
    circuit_of,
    header,
    hec,
    is_intact,
    nodes_of,
)
from protocols.atm.fields import ETHERTYPE
from protocols.atm.frames import Cell
from testbed.fates.flows import Classifier
from testbed.fates.header_fields import locate
from testbed.fields import known_fields

ETHERNET_HEADER = bytes(12) + ETHERTYPE.to_bytes(2, "big")

circuits = st.builds(Circuit, st.integers(0, 255), st.integers(0, 65535))


def test_an_idle_cell_has_the_header_of_the_recommendation() -> None:
    """ITU-T I.432.1, table 1: 00000000 00000000 00000000 00000001 01010010."""
    assert header(Circuit(0, 0), loss_priority=1) == bytes.fromhex("0000000152")


def test_the_hec_is_a_crc_with_a_coset() -> None:
    assert hec(bytes(4)) == 0x55
    for first, second in ((b"\1\2\3\4", b"\x80\0\xff\x10"), (b"\xff" * 4, b"\0\0\2\x10")):
        combined = bytes(a ^ b for a, b in zip(first, second, strict=True))
        assert hec(combined) == hec(first) ^ hec(second) ^ 0x55


@given(circuits, st.integers(0, 7), st.integers(0, 1), st.integers(0, 39))
def test_a_header_contains_its_circuit_and_a_flipped_bit_is_detected(
    vc: Circuit, payload_type: int, loss_priority: int, bit: int
) -> None:
    cell = header(vc, payload_type, loss_priority) + bytes(PAYLOAD)
    assert circuit_of(cell) == vc
    assert is_intact(cell)
    damaged_cell = bytearray(cell)
    damaged_cell[bit // 8] ^= 1 << bit % 8
    assert not is_intact(damaged_cell)
    assert not is_intact(cell[:-1])


@given(circuits, st.integers(0, 7), st.integers(0, 1), st.binary(min_size=PAYLOAD, max_size=PAYLOAD))
def test_scapys_layer_and_rules_read_the_bytes_that_the_codec_writes(
    vc: Circuit, payload_type: int, loss_priority: int, payload: bytes
) -> None:
    cell = header(vc, payload_type, loss_priority) + payload
    layer = Cell(vpi=vc.vpi, vci=vc.vci, pti=payload_type, clp=loss_priority)
    frame = bytes(Ether() / layer / Raw(payload))
    assert frame[ETHERNET:] == cell
    assert frame[12:14] == ETHERTYPE.to_bytes(2, "big")
    fields, located = known_fields(), locate(frame)
    values = {name: fields.reader(f"atm.{name}")(frame, located) for name in ("vpi", "vci", "pti", "clp", "hec")}
    assert values == {**vc._asdict(), "pti": payload_type, "clp": loss_priority, "hec": cell[4]}


@given(st.data())
def test_every_pair_of_nodes_has_its_own_circuit(data: st.DataObject) -> None:
    nodes = data.draw(st.integers(2, MAX_NODES))
    numbers = st.integers(0, nodes - 1)
    source, destination = data.draw(numbers), data.draw(numbers)
    vc = circuit(source, destination, nodes)
    assert vc.vpi < 256
    assert FIRST_VCI <= vc.vci < 65536
    assert nodes_of(vc, nodes) == (source, destination)


def test_circuits_between_no_nodes_are_recognized() -> None:
    assert nodes_of(Circuit(0, 5), 4) is None, "VCIs below 32 are for signalling"
    assert nodes_of(Circuit(0, FIRST_VCI + 16), 4) is None
    last = circuit(MAX_NODES - 1, MAX_NODES - 1, MAX_NODES)
    assert last.vpi == 255


@pytest.mark.parametrize(("size", "sizes"), [(CELL, [CELL]), (3 * CELL, [CELL] * 3), (CELL + 7, [CELL, 7]), (0, [0])])
def test_a_frame_of_several_cells_is_split(size: int, sizes: list[int]) -> None:
    payload = bytes(number % 251 for number in range(size))
    cells = list(cells_of(ETHERNET_HEADER + payload))
    assert [len(part) - ETHERNET for part in cells] == sizes
    assert b"".join(part[ETHERNET:] for part in cells) == payload
    assert {part[:ETHERNET] for part in cells} == {ETHERNET_HEADER}


def test_cells_of_one_circuit_are_one_flow_whatever_their_type() -> None:
    classifier = Classifier(known_fields())
    flows = {
        classifier.of(ETHERNET_HEADER + header(Circuit(0, 40), kind, priority) + bytes(PAYLOAD))[0]
        for kind in range(8)
        for priority in (0, 1)
    }
    assert len(flows) == 1
    flow_of_another_circuit = classifier.of(ETHERNET_HEADER + header(Circuit(0, 41)) + bytes(PAYLOAD))[0]
    assert flow_of_another_circuit not in flows
