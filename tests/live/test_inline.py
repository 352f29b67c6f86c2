"""Inline NICs: concurrent events, overload, deadlines, and firmware that is never re-entered."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import random
import time

import pytest

from protocols.core.completion import Completion
from protocols.core.firmware import Adapter, Agent, Buffer
from protocols.emp import host as emp
from protocols.emp.codec import ETHERTYPE as EMP
from protocols.emp.split_driver import split_driver
from testbed import Cluster
from testbed.controller.runs.agents import SPIN, Placement, agents
from testbed.errors import TestbedError
from testbed.kernel import namespaces, syscalls
from testbed.kernel.frame_socket import FrameSocket
from testbed.runtime.nodes.inline_driver import Driver
from testbed.runtime.nodes.inline_nic import InlineNic
from testbed.runtime.nodes.node_process import build_inline_nic
from testbed.runtime.nodes.patience import Patience
from testbed.runtime.nodes.run_orders import ProgramNode, RunOrders
from testbed.runtime.nodes.veth_port import VethPort
from testbed.runtime.shared.attachment import HostDriver
from testbed.spec.model import Defaults
from tests.live.echo_protocol import ETHERTYPE, EchoEndpoint, plug
from tests.live.emp_exchange import SIZES, exchange_messages
from tests.live.node_sockets import open_socket

pytestmark = [pytest.mark.requires("root"), pytest.mark.usefixtures("machine")]

TIMEOUT = 20.0  # s
MILLISECOND = 1_000_000  # ns


def test_frames_dropped_at_an_unread_socket_make_the_run_invalid() -> None:
    async def block(_endpoint: EchoEndpoint, node: ProgramNode) -> None:
        time.sleep(1.0)  # a program that blocks its NIC
        await node.loop.sleep(MILLISECOND)

    async def flood(endpoint: EchoEndpoint, node: ProgramNode) -> None:
        for _ in range(20_000):
            endpoint.send(node.numbers["n2"], bytes(1_400))

    with (
        Cluster.star(2).up() as cluster,
        agents(cluster, plug, ETHERTYPE, {"n1": flood, "n2": block}) as run,
    ):
        outcome = run.wait(TIMEOUT)
    report = outcome.reports["n2"]
    assert report.dropped > 0
    assert report.received + report.dropped == 20_000
    assert f"NIC lost on n2: {report.dropped} frames ({report.dropped} that its process did" in outcome.invalid


def test_a_nic_without_carrier_counts_frames_that_it_cannot_send() -> None:
    async def send(endpoint: EchoEndpoint, node: ProgramNode) -> None:
        await endpoint.send(node.numbers["n2"], b"unanswered")

    with Cluster.star(2).up() as cluster:
        cluster["n1"].run(["ip", "link", "set", cluster["n1"].layout.nics[0].name, "down"])
        with agents(cluster, plug, ETHERTYPE, {"n1": send}) as run:
            outcome = run.wait(TIMEOUT)
    assert outcome.reports["n1"].down == 1
    assert outcome.reports["n1"].lost == 0


def test_a_cut_link_is_detected_at_once() -> None:
    with Cluster.star(2).up() as cluster:
        device = cluster["n1"].layout.nics[0].name
        with namespaces.restore_namespace(), open(cluster["n1"].namespace) as namespace:
            syscalls.setns(namespace.fileno(), syscalls.CLONE_NEWNET)
            wire = FrameSocket(device, ETHERTYPE, 1500)
        with contextlib.closing(wire):
            assert wire.has_carrier()
            with cluster.cut("n1"):
                assert not wire.has_carrier()
            assert wire.has_carrier()


@pytest.mark.parametrize(("carrier", "down", "unsent"), [(True, 0, 1), (False, 1, 0)])
def test_frames_that_the_kernel_rejects_count_as_lost_only_with_carrier(carrier: bool, down: int, unsent: int) -> None:
    """The kernel returns ENOBUFS for up to a second, until its link watch has noticed the lost carrier."""

    def send_without_buffers(_frame: Buffer) -> int:
        raise OSError(errno.ENOBUFS, "no buffers")

    class RejectingSocket(FrameSocket):
        def __init__(self) -> None:
            self.send = send_without_buffers

        def has_carrier(self) -> bool:
            return carrier

    nic = InlineNic(VethPort(RejectingSocket()))
    nic.send(b"frame")
    assert (nic.port.down, nic.port.unsent) == (down, unsent)


@pytest.mark.parametrize(("extra_nodes", "spin"), [(0, Patience.SPIN), (1, 0)])
def test_a_process_polls_before_it_blocks_unless_there_are_more_nodes_than_cores(extra_nodes: int, spin: int) -> None:
    numbers = {f"n{number}": number for number in range(len(os.sched_getaffinity(0)) + extra_nodes)}
    orders = RunOrders(plug, ETHERTYPE, (), {}, numbers)
    adapter = Adapter(0, [bytes((2, 0, 0, 0, 0, number)) for number in numbers.values()])
    with Cluster.star(1).up() as cluster, namespaces.restore_namespace(), open(cluster["n1"].namespace) as namespace:
        syscalls.setns(namespace.fileno(), syscalls.CLONE_NEWNET)
        wire, _, _, driver = build_inline_nic(orders, cluster["n1"].layout.nics[0].name, adapter)
        with contextlib.closing(wire), contextlib.closing(driver):
            assert driver.patience.budget() == spin


@pytest.mark.parametrize(
    ("processors", "shared", "spin"),
    [
        (2, None, 0),
        (3, None, SPIN),
        (4, Placement(split_driver=split_driver(), share_all=True), 0),
        (5, Placement(split_driver=split_driver(), share_all=True), SPIN),
    ],
    ids=["two on two", "two on three", "four on four", "four on five"],
)
def test_processes_spin_only_with_a_spare_core(
    processors: int, shared: Placement | None, spin: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two nodes; with shared NICs each node has an agent process in addition."""

    async def read_spin(_endpoint: emp.Endpoint, node: ProgramNode) -> int:
        driver = node.loop._waiter
        assert isinstance(driver, Driver | HostDriver)
        return driver.spin

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(processors)))
    with (
        Cluster.star(2).up() as cluster,
        agents(cluster, emp.plug(), EMP, {"n1": read_spin, "n2": read_spin}, placement=shared) as run,
    ):
        assert run.wait(TIMEOUT).results == {"n1": spin, "n2": spin}


def test_the_firmware_is_never_reentered() -> None:
    """The host library posts another receive from within every completion, while the firmware delivers it."""

    async def receive_again(endpoint: EchoEndpoint, node: ProgramNode) -> int:
        endpoint.again = 40
        endpoint.receive(bytearray(64))
        while endpoint.again:
            await node.loop.sleep(MILLISECOND)
        return endpoint.came

    async def send(endpoint: EchoEndpoint, node: ProgramNode) -> None:
        for _ in range(50):
            await endpoint.send(node.numbers["n1"], b"again")

    with (
        Cluster.star(2).up() as cluster,
        agents(cluster, plug, ETHERTYPE, {"n1": receive_again, "n2": send}) as run,
    ):
        outcome = run.wait(TIMEOUT)
    assert outcome.results["n1"] == 40
    assert {report.counted["inside"] for report in outcome.reports.values()} == {0}


class Deadlines:
    """Firmware with a deadline every millisecond, and a host that waits for the tenth timer."""

    def __init__(self) -> None:
        self.deadline: int | None = 0
        self.times: list[int] = []
        self.tenth: Completion[list[int]] = Completion("the tenth timer")

    def on_timer(self, now: int) -> None:
        self.times.append(now)
        self.deadline = now + MILLISECOND if len(self.times) < 10 else None
        if len(self.times) == 10:
            self.tenth.complete(self.times)

    def receive(self, _now: int, _frame: bytes) -> None:
        raise AssertionError("no frame was sent")

    def on_doorbell(self, _now: int, _index: int) -> None:
        raise AssertionError("no doorbell was rung")

    def on_completion(self, _index: int) -> None:
        raise AssertionError("no completion was posted")

    def counter_values(self) -> dict[str, int]:
        return {}

    def pending_work(self) -> list[str]:
        return []


@pytest.mark.parametrize("spin", [0, 10**9], ids=["blocking", "spinning"])
def test_firmware_timers_do_not_fire_early(spin: int) -> None:
    async def wait(endpoint: Deadlines, _node: ProgramNode) -> list[int]:
        return await endpoint.tenth

    def build(_adapter: Adapter, _nic: InlineNic) -> Agent:
        deadlines = Deadlines()
        return Agent(deadlines, deadlines)

    with Cluster.star(2).up() as cluster, agents(cluster, build, ETHERTYPE, {"n1": wait}, spin=spin) as run:
        times = run.wait(TIMEOUT).results["n1"]
    assert all(later - earlier >= MILLISECOND for earlier, later in itertools.pairwise(times))


def test_a_nic_receives_no_frames_of_other_ethertypes() -> None:
    async def sleep(_endpoint: EchoEndpoint, node: ProgramNode) -> None:
        await node.loop.sleep(200 * MILLISECOND)

    with Cluster.star(2).up() as cluster:
        with agents(cluster, plug, ETHERTYPE, {"n2": sleep}) as run:
            with open_socket(cluster["n1"].namespace, cluster["n1"].layout.nics[0].name) as wire:
                for _ in range(100):
                    wire.send(b"\xff" * 6 + bytes(6) + b"\x88\xb5" + bytes(46))
            outcome = run.wait(TIMEOUT)
        assert outcome.reports["n2"].received == 0


def test_a_program_with_timeouts_and_tasks_runs_next_to_its_nic() -> None:
    async def sleeper(node: ProgramNode) -> None:
        await node.loop.sleep(3 * MILLISECOND)

    async def wait_twice(endpoint: EchoEndpoint, node: ProgramNode) -> tuple[bool, str]:
        loop = node.loop
        start = loop.now()
        task = loop.spawn(sleeper(node), "sleeper")
        try:
            await loop.timeout(MILLISECOND, endpoint.receive(bytearray(8)))
        except TimeoutError as error:
            message = str(error)
        await task
        return loop.now() - start >= 3 * MILLISECOND, message

    with Cluster.star(2).up() as cluster, agents(cluster, plug, ETHERTYPE, {"n1": wait_twice}) as run:
        assert run.wait(TIMEOUT).results["n1"] == (True, "not done within 1000000 ns")


def test_emp_transfers_messages_of_many_frames_in_both_directions() -> None:
    with (
        Cluster.star(2).up() as cluster,
        agents(cluster, emp.plug(), EMP, {"n1": exchange_messages, "n2": exchange_messages}) as run,
    ):
        outcome = run.wait(TIMEOUT)
    assert outcome.results == {"n1": [True] * len(SIZES), "n2": [True] * len(SIZES)}


def test_a_message_of_8000_bytes_is_one_frame_where_the_mtu_is_9000() -> None:
    message = random.Random(8_000).randbytes(8_000)

    async def sender_program(endpoint: emp.Endpoint, node: ProgramNode) -> None:
        await endpoint.send(node.numbers["n2"], 1, message)

    async def receiver_program(endpoint: emp.Endpoint, node: ProgramNode) -> bool:
        buffer = bytearray(9_000)
        received = await endpoint.receive(node.numbers["n1"], 1, buffer)
        return buffer[: received.length] == message

    def transmit(mtu: int) -> tuple[bool, int]:
        """Return whether the message arrived unchanged, and the number of its frames."""
        description = Cluster(**{**Cluster.star(2).model_dump(exclude_defaults=True), "defaults": Defaults(mtu=mtu)})
        with (
            description.up() as cluster,
            agents(cluster, emp.plug(), EMP, {"n1": sender_program, "n2": receiver_program}) as run,
        ):
            outcome = run.wait(TIMEOUT)
        return outcome.results["n2"], outcome.reports["n1"].counted["frames_sent"]

    assert transmit(9_000) == (True, 1)
    assert transmit(1_500) == (True, 6)


def test_firmware_that_cannot_be_built_is_reported() -> None:
    def broken(_adapter: Adapter, _nic: InlineNic) -> Agent:
        raise RuntimeError("no such card")

    async def never(_endpoint: Deadlines, _node: ProgramNode) -> None:
        raise AssertionError("it has no NIC")

    with (
        Cluster.star(2).up() as cluster,
        pytest.raises(TestbedError, match=r"(?s)no NIC can be built.*no such card"),
        agents(cluster, broken, ETHERTYPE, {"n1": never}),
    ):
        pass
