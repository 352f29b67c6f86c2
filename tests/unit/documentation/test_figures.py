"""Figures of frames in the documentation match the layers of Scapy."""

from __future__ import annotations

import re
from importlib import import_module

import pytest
from scapy.packet import Packet

from reference import frame_figures
from reference.__main__ import SYSTEMS


def layers(system: str) -> list[type[Packet]]:
    stacks = import_module(f"protocols.{system}.frames").STACKS
    return list(dict.fromkeys(layer for stack in stacks.values() for layer in stack[1:]))


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_size_of_a_figure_is_that_of_the_layer_in_scapy(system: str) -> None:
    for layer in layers(system):
        fields = sum(field.sz for field in layer.fields_desc if frame_figures.is_behind(field))
        length = len(bytes(layer()))
        assert int(frame_figures.size_of(layer).rstrip("+")) == length - fields, layer


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_figure_has_complete_rows_and_every_field(system: str) -> None:
    for layer in layers(system):
        figure = frame_figures.figure(layer)
        rows = re.findall(r"<tr>.*?</tr>", figure.partition("<tbody>")[2], re.DOTALL)
        assert rows
        for row in rows:
            assert sum(map(int, re.findall(r'colspan="(\d+)"', row))) == frame_figures.WORD
        for field in layer.fields_desc:
            assert frame_figures.is_behind(field) or f">{field.name}" in figure


def test_a_large_field_is_abbreviated_to_its_ends_and_one_row() -> None:
    figure = frame_figures.figure(layers("ssam")[1])
    assert figure.count(">data<") == 2
    assert figure.count(">data, 40 bytes<") == 1


def test_comments_of_a_layer_are_shown_next_to_its_fields() -> None:
    comments = frame_figures.comments(layers("am2")[1])
    assert comments["reason"].startswith("Reason of a NACK. Up to NO_MAPPING, reasons are temporary")
    assert comments["length"] == "bytes of payload: arguments, then data"
