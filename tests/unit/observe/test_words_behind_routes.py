"""Frames in words where a source route stands in front of their header."""

from __future__ import annotations

from types import ModuleType

import pytest

from protocols.emp import codec
from testbed.observe.wording import Told
from testbed.wire.fields import ETHERNET_HEADER
from testbed.wire.headers import standard_fields

MACS = bytes.fromhex("020000000002"), bytes.fromhex("020000000001")
FRAME = codec.pack_frame(*MACS, codec.TYPE_DATA, 0, 3, 1, 2, 77, 5, codec.STATUS_OK, b"abc")


def told(routed: bool) -> Told:
    """EMP, as if its frames had a route."""
    module = ModuleType("routed")
    vars(module).update({**vars(codec), "ROUTED": routed})
    fields = standard_fields()
    fields.register("emp", codec.ETHERTYPE, codec.FIELDS, codec.FLOW, routed=routed)
    return Told("emp", module, fields)


@pytest.mark.parametrize("route", [b"", b"\x81", b"\x81\xbf\x80"])
def test_a_frame_is_told_of_in_the_same_words_whatever_is_left_of_its_route(route: bytes) -> None:
    one = told(routed=True)
    frame = FRAME[:ETHERNET_HEADER] + route + FRAME[ETHERNET_HEADER:]
    assert one.words(frame) == told(routed=False).words(FRAME) != ""
    assert one.sort(frame) == codec.TYPE_DATA
    assert not one.wrong(frame)
    assert one.read("message")(frame) == 77
    assert "broken (check)" in one.words(frame[:-1] + b"x")
