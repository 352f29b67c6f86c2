"""Send frames at given times over one link of a running cluster, with the kernel's stamps at both of its ends."""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Final, Literal, TypeAlias

from testbed import RunningCluster
from testbed.kernel.diversion import drop_reinserted
from testbed.kernel.namespaces import OpenNamespace, open_path
from testbed.kernel.packet_options import attach_filter
from testbed.kernel.rtnl_dump import by_name, interfaces
from tests.live.forked_children import background
from tests.live.iproute2 import wire_path
from tests.live.node_sockets import ETH_P_ALL, open_socket
from tests.unit.fates.wire_frames import numbered

Schedule: TypeAlias = Sequence[tuple[int, bytes]]
"""Frames with their send times, nanoseconds since the schedule's beginning."""

Stamped: TypeAlias = list[tuple[int, bytes]]
"""Frames with their arrival times in nanoseconds."""
DirectionName: TypeAlias = Literal["forward", "backward"]

BUFFER: Final = 256 << 20
_SEND_BYTES: Final = 16 << 20
_SO_SNDBUFFORCE, _SO_RCVBUFFORCE, _SO_TIMESTAMPNS = 32, 33, 35
_SOL_PACKET, _PACKET_STATISTICS, _PACKET_AUXDATA, _PACKET_IGNORE_OUTGOING = 263, 6, 8, 23
_STAMP = struct.Struct("qq")
_AUXDATA = struct.Struct("3I4H")
_VLAN_VALID = 1 << 4
_NEAR = 200_000  # ns before a frame's time from which on the sender watches the clock


class Tap:
    """Receive all frames of an interface with their wall-clock times in nanoseconds."""

    def __init__(self, packet_socket: socket.socket) -> None:
        self.socket = packet_socket
        self.frames: Stamped = []
        packet_socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, BUFFER)
        packet_socket.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        packet_socket.setsockopt(_SOL_PACKET, _PACKET_AUXDATA, 1)
        packet_socket.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)

    def read(self) -> Stamped:
        """Return all frames received so far."""
        recvmsg, frames = self.socket.recvmsg, self.frames
        while True:
            try:
                frame, control, _, _ = recvmsg(65_536, 256)
            except BlockingIOError:
                break
            time = 0
            for level, kind, data in control:
                if (level, kind) == (socket.SOL_SOCKET, _SO_TIMESTAMPNS):
                    seconds, nanoseconds = _STAMP.unpack(data)
                    time = seconds * 10**9 + nanoseconds
                elif (level, kind) == (_SOL_PACKET, _PACKET_AUXDATA):
                    status, _, _, _, _, tci, tpid = _AUXDATA.unpack(data)
                    if status & _VLAN_VALID:
                        frame = frame[:12] + (tpid << 16 | tci).to_bytes(4, "big") + frame[12:]
            frames.append((time, frame))
        _, dropped = struct.unpack("II", self.socket.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8))
        assert not dropped, f"the test itself has missed {dropped} frames"
        return frames


class Cable:
    """Cluster link with sockets on the NICs at its ends and taps on its free ends, where frames enter it."""

    def __init__(self, cluster: RunningCluster, link: str, a: str, b: str) -> None:
        """a, b: the free ends. If a switch is at an end, the first other node of the cluster takes its place."""
        self.link = link
        self._cluster = cluster
        self._ends = {"forward": a, "backward": b}
        self._stack = ExitStack()
        self._taps: dict[str, Tap] = {}

    def __enter__(self) -> Cable:
        (layout_link,) = [link for link in self._cluster.state.layout.links if link.name == self.link]
        nodes = list(self._cluster.nodes)
        first = layout_link.a.owner if layout_link.a.owner in nodes else layout_link.b.owner
        other_node = (
            layout_link.b.owner if layout_link.b.owner in nodes else next(node for node in nodes if node != first)
        )
        self._nics = {}
        try:
            self.wire: OpenNamespace = open_path(wire_path(self._cluster.state))
            self._stack.callback(self.wire.close)
            for direction, node in (
                ("backward", first),
                ("forward", other_node),
            ):  # the NIC at which that direction comes out
                packet_socket = open_socket(self._cluster[node].namespace, "eth0", ETH_P_ALL)
                self._nics[direction] = Tap(self._stack.enter_context(packet_socket))
                self._nics[direction].socket.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, _SEND_BYTES)
            self._wait_for_stamps()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _wait_for_stamps(self) -> None:
        """Wait until the kernel stamps frames on arrival; before that its stamps are times of reading."""
        receiver = self._nics["forward"]
        while True:
            self._nics["backward"].socket.send(numbered(0))
            assert select.select([receiver.socket], [], [], 30)[0], "the two nodes do not reach each other"
            reading = time.time_ns()
            if all(stamp < reading for stamp, _ in receiver.read()[-1:]):
                return

    @contextmanager
    def tapped(self) -> Iterator[None]:
        """Place taps on the present free ends for the block."""
        wire = wire_path(self._cluster.state)
        with ExitStack() as stack:
            interfaces_by_name = by_name(interfaces(self.wire.route))
            for direction, end in self._ends.items():
                self._taps[direction] = Tap(stack.enter_context(open_socket(wire, end, ETH_P_ALL)))
                # Without frames that a datapath reinserts into a switch.
                attach_filter(self._taps[direction].socket, drop_reinserted(interfaces_by_name[end].index))
            self.index_a, self.index_b = (interfaces_by_name[end].index for end in self._ends.values())
            yield
        self._taps.clear()

    def marks(self, direction: str) -> tuple[int, int]:
        """Return the present positions in the records, for `offered` and `arrived`."""
        return len(self._taps[direction].read()), len(self._nics[direction].read())

    def offered(self, direction: str, start_marks: tuple[int, int]) -> Stamped:
        """Return the frames that entered the link since `marks`."""
        return self._taps[direction].read()[start_marks[0] :]

    def arrived(self, direction: str, start_marks: tuple[int, int]) -> Stamped:
        """Return the frames that left the link since `marks`."""
        return self._nics[direction].read()[start_marks[1] :]

    def send(self, schedules: Mapping[DirectionName, Schedule]) -> None:
        """Send frames of one direction or both, each at its time or as soon after it as the machine can."""
        senders = {"forward": self._nics["backward"].socket.send, "backward": self._nics["forward"].socket.send}
        merged = sorted(
            [
                (due, index, direction)
                for direction, schedule in schedules.items()
                for index, (due, _) in enumerate(schedule)
            ]
        )
        # On one processor, so that the kernel takes the frames in the order in which they were sent.
        allowed = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {max(allowed)})
        try:
            start_time = time.monotonic_ns() - merged[0][0]
            for due, index, direction in merged:
                while (remaining := start_time + due - time.monotonic_ns()) > 0:
                    if remaining > _NEAR:
                        time.sleep((remaining - _NEAR) / 1e9)  # until its frame is due
                senders[direction](schedules[direction][index][1])
        finally:
            os.sched_setaffinity(0, allowed)

    @contextmanager
    def sending(self, schedule: Schedule, held_count: int) -> Iterator[Callable[[], None]]:
        """Context manager: send frames forward from another process, the last `held_count` only on a call of the yielded
        function, which returns when all are sent."""
        waiting_end, signalling_end = os.pipe()

        def send(_report: Callable[[object], None]) -> None:
            self.send({"forward": schedule[:-held_count]})
            os.read(waiting_end, 1)
            self.send({"forward": schedule[-held_count:]})

        with ExitStack() as stack:
            stack.callback(os.close, waiting_end)
            stack.callback(os.close, signalling_end)
            sender = stack.enter_context(background(send))

            def send_rest() -> None:
                os.write(signalling_end, b"!")
                assert sender.wait() == 0

            yield send_rest
