"""A workload that needs reliable delivery is rejected on a lossy protocol before the cluster is brought up."""

from __future__ import annotations

from pathlib import Path

import pytest

import testbed
from testbed.errors import UnsupportedError
from testbed.workloads.form import Comm, Node, Workload


async def undeclared(comm: Comm, node: Node) -> None:
    """Program that does not declare that it supports loss."""


class LossTolerant(Workload):
    """Workload that declares that it supports loss."""

    supports_loss = True

    async def rank(self, comm: Comm, node: Node) -> None:
        """Return at once."""


@pytest.mark.parametrize("workload", ["sort", "random", "logp", "comb", undeclared])
def test_workloads_that_need_every_message_are_rejected(tmp_path: Path, workload: object) -> None:
    with pytest.raises(UnsupportedError, match="needs every message, once and in order, which udp does not guarantee"):
        testbed.run("star-4", workload, protocol="udp", output=tmp_path / "run")  # type: ignore[arg-type]
    assert not (tmp_path / "run").exists()


def test_a_protocol_without_guarantees_cannot_be_checked(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="udp gives no guarantees that could be checked"):
        testbed.run("star-4", LossTolerant, protocol="udp", check=True, output=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_udp_is_a_kernel_protocol_without_a_simulation() -> None:
    with pytest.raises(UnsupportedError, match="udp is a kernel protocol, which needs --mode live"):
        testbed.run("star-4", "pingpong", protocol="udp", mode="sim")
