"""Rules that change frames, on real links: EMP's programs and the kernel's UDP receive the changed frames, and a log replays
them."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

import testbed
from testbed import Cluster
from testbed.runtime.logs import read_log
from tests.live import node_sockets
from tests.live.testbed_command import assert_error
from tests.live.testbed_command import testbed as command
from tests.sim.changed_frames import SET_TAG, SET_TAG_KEEP_CHECK, TAG, expected, tags

pytestmark = [pytest.mark.requires("root"), pytest.mark.usefixtures("machine")]

PORT = 5001
LONG_TIMEOUT = {"timeout": 500_000_000, "longest_timeout": 500_000_000}
"""Timeout that only a loss exceeds, not a busy machine: a replay by frame numbers needs the same frames."""


@pytest.mark.parametrize(("rule", "second"), [(SET_TAG, 7), (SET_TAG_KEEP_CHECK, TAG)], ids=["mended", "kept"])
def test_a_changed_tag_is_delivered_only_if_the_checksum_is_updated(rule: str, second: int, tmp_path: Path) -> None:
    log = tmp_path / "fates.jsonl"
    with Cluster.back_to_back().up(fates=log) as cluster, cluster.inject("n1", direction="out", rules=[rule]):
        assert testbed.run(cluster, tags, timeout=20, firmware=LONG_TIMEOUT).results["n2"] == expected(second)
    assert {(record.fate.sets, record.fate.mend) for record in read_log(log)} == {((("emp.tag", 7),), rule is SET_TAG)}
    with Cluster.back_to_back().up() as cluster, cluster.inject("all", replay=log):
        assert testbed.run(cluster, tags, timeout=20, firmware=LONG_TIMEOUT).results["n2"] == expected(second)


def test_a_rule_redirects_a_datagram_to_another_port_and_the_kernel_drops_one_with_a_stale_checksum() -> None:
    """n1 sends four datagrams to PORT: the second arrives at PORT + 1, the third is lost."""
    with Cluster.back_to_back().up() as cluster:
        address = str(cluster["n2"].layout.nics[0].addresses[0]).partition("/")[0]
        with ExitStack() as stack:
            first, second = (
                stack.enter_context(
                    node_sockets.socket_in(cluster["n2"].namespace, partial(listening_socket, address, port))
                )
                for port in (PORT, PORT + 1)
            )
            sender = stack.enter_context(node_sockets.socket_in(cluster["n1"].namespace, udp_socket))
            sender.sendto(b"first, before any rule", (address, PORT))
            assert first.recv(100) == b"first, before any rule"
            for rule in (
                f"set udp.dport = {PORT + 1} udp.dport == {PORT} and nth(2)",
                # Counts only frames that the first rule does not match.
                f"set udp.sport = 9 keep-check udp.dport == {PORT} and nth(2)",
            ):
                done = command("inject", "n1", "--name", cluster.name, "--direction", "out", "--rule", rule)
                assert done.returncode == 0, done.stderr
            for number in range(4):
                sender.sendto(bytes([number]), (address, PORT))
            assert [first.recv(100), first.recv(100)] == [b"\0", b"\3"]
            assert second.recv(100) == b"\1"
        assert_error(
            command("inject", "n1", "--name", cluster.name, "--rule", "set udp.dprot = 7"), 2,
            "column 5", "did you mean 'udp.dport'?",
        )  # fmt: skip


def udp_socket() -> socket.socket:
    return socket.socket(socket.AF_INET, socket.SOCK_DGRAM)


def listening_socket(address: str, port: int) -> socket.socket:
    udp = udp_socket()
    udp.bind((address, port))
    udp.settimeout(10)
    return udp
