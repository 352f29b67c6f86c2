"""A NIC that restarts before its first message receives messages in every mode."""

from __future__ import annotations

import pytest

import testbed
from testbed import Cluster, Scenario
from testbed.controller.runs.run_options import Mode
from testbed.spec.fault_models import Restart
from testbed.workloads.form import Comm, Node

pytestmark = [pytest.mark.requires("root"), pytest.mark.usefixtures("machine")]

MS = 1_000_000
MODES: tuple[tuple[Mode, int | None], ...] = (("sim", None), ("live", None), ("dilated", 5))


async def send_after_restart(comm: Comm, node: Node) -> str:
    """n1 sends its first message once n2 has restarted."""
    if comm.rank == 0:
        await node.sleep(150 * MS)
        await comm.send("hello", 1)
        return ""
    if node.starts == 1:
        await node.sleep(1_000 * MS)
    return f"incarnation {node.starts}: {await comm.recv(source=0)}"


@pytest.mark.parametrize(("mode", "dilate"), MODES)
def test_a_first_message_to_a_restarted_node_arrives(mode: Mode, dilate: int | None) -> None:
    restart = Scenario(name="restart", faults=(Restart(on="n2", at="50ms"),))
    result = testbed.run(
        Cluster.star(2, delay="10us"), send_after_restart, mode=mode, dilate=dilate, scenario=restart,
        check=False, timeout=20,
    )  # fmt: skip
    assert result.results == {"n1": "", "n2": "incarnation 2: hello"}
