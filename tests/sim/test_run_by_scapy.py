"""A run whose frames Scapy itself makes and reads is the same run, to the byte."""

from __future__ import annotations

from pathlib import Path

import pytest

import testbed
from testbed.controller.running import Codec
from testbed.errors import UnsupportedError
from testbed.spec.model import Description


def captured(folder: Path, protocol: str, codec: Codec) -> dict[str, bytes]:
    cluster = Description.star(3, loss="5%", corrupt="2%", delay="10us", seed=4)
    result = testbed.run(
        cluster,
        "random",
        mode="sim",
        protocol=protocol,
        codec=codec,
        settings={"messages": 12},
        output=folder / codec,
        capture=True,
    )
    assert [result.results[name]["received"] for name in result.results]
    assert sum(counted["corrupt"] for counted in result.counted.values())
    return {path.name: path.read_bytes() for path in sorted((folder / codec).rglob("*.pcapng"))}


@pytest.mark.parametrize("protocol", ["am2", "emp"])
def test_captures_are_equal_whoever_makes_the_frames(tmp_path: Path, protocol: str) -> None:
    expected = captured(tmp_path, protocol, "generated")
    assert expected
    assert captured(tmp_path, protocol, "scapy") == expected


def test_a_protocol_without_frames_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="tcp has no frames that Scapy could make"):
        testbed.run("star-4", "pingpong", protocol="tcp", codec="scapy")
