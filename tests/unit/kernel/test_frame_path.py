"""All implementations of the frame path return equal results and raise equal errors."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import random
import resource
import select
import signal
import socket
import time
from collections.abc import Callable
from functools import partial
from types import ModuleType

import pytest

from protocols.core.compiled_build import build
from testbed.kernel import frame_socket, interpreted_frames, netlink_messages, packet_socket, syscalls
from testbed.kernel.children import in_child
from testbed.kernel.frame_socket import FrameSocket
from testbed.kernel.interpreted_frames import BATCH, FrameCalls
from testbed.kernel.namespaces import open_path
from testbed.kernel.packet_options import PACKET_AUXDATA, PACKET_VNET_HDR, SO_TIMESTAMPNS, SOL_PACKET
from testbed.kernel.packet_socket import PacketSocket
from tests.unit.kernel.frame_paths import frame_paths, native_frames

pytestmark = pytest.mark.requires("root", "compiler", "python-headers")

ETHERTYPE = 0x88B5
A, B = 101, 102
"""Indexes of the two interfaces."""
MTU = 1_500
MAX_FRAME = MTU + 14

LEAK_ROUNDS = 150_000 if os.environ.get("TESTBED_LONG") else 10_000
SMALLEST_OBJECT = 16
"""Size of the smallest Python object, bytes."""

Scenario = Callable[[ModuleType], None]


def on_all_paths(scenario: Scenario) -> None:
    """Run a scenario on each frame path, in a new namespace with a veth pair a-b."""
    for path in frame_paths():
        in_child(partial(_in_new_namespace, scenario, path))


def _in_new_namespace(scenario: Scenario, path: ModuleType) -> None:
    syscalls.unshare(syscalls.CLONE_NEWNET)
    namespace = open_path("/proc/thread-self/ns/net")
    namespace.route.execute([netlink_messages.make_veth("a", A, MTU, namespace.descriptor, "b", B)])
    namespace.route.execute([netlink_messages.set_up(A), netlink_messages.set_up(B)])
    sender, receiver = open_socket("a"), open_socket("b")
    while not select.select([receiver], [], [], 0.01)[0]:  # the carrier comes some time later
        sender.send(frame(0, 60))
    scenario(path)


def open_socket(device: str) -> socket.socket:
    raw_socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0)
    raw_socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
    raw_socket.bind((device, ETHERTYPE))
    return raw_socket


def frame(number: int, size: int) -> bytes:
    head = b"\xff" * 6 + bytes((2, 0, 0, 0, 0, 1)) + ETHERTYPE.to_bytes(2, "big")
    return (head + number.to_bytes(4, "big") * (size // 4))[:size]


def calls_on(path: ModuleType, device: str, longest: int = MAX_FRAME) -> FrameCalls:
    calls: FrameCalls = path.FrameCalls(open_socket(device), longest)
    return calls


def receive_frames(calls: FrameCalls, count: int) -> list[bytes]:
    """Receive `count` frames, waiting for the kernel to deliver them."""
    frames: list[bytes] = []
    deadline = time.monotonic() + 30
    while len(frames) < count:
        assert time.monotonic() < deadline, f"{count - len(frames)} frames do not come"
        if (frame_received := calls.receive()) is not None:
            frames.append(frame_received)
    return frames


def error_name(call: Callable[[], object]) -> str:
    """Return the errno name of the error that a call raises, or an empty string."""
    try:
        call()
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return ""


def set_link(message: Callable[[int], bytes], index: int) -> None:
    open_path("/proc/thread-self/ns/net").route.execute([message(index)])


def test_waiting_frames_are_received_in_order() -> None:
    def scenario(path: ModuleType) -> None:
        sender, receiver = calls_on(path, "a"), calls_on(path, "b")
        numbers = itertools.count()
        rng = random.Random(7)
        for count in (1, 2, 3, 16, 17, 18, 33, 100):
            sent = [frame(next(numbers), rng.randrange(60, MAX_FRAME + 1)) for _ in range(count)]
            assert [sender.send(entry) for entry in sent] == [len(entry) for entry in sent]
            assert receive_frames(receiver, count) == sent
            assert receiver.receive() is None

    on_all_paths(scenario)


def test_any_contiguous_buffer_can_be_sent_and_nothing_else() -> None:
    def scenario(path: ModuleType) -> None:
        sender, receiver = calls_on(path, "a"), calls_on(path, "b")
        short_frame = frame(1, 100)
        for buffer in (short_frame, bytearray(short_frame), memoryview(short_frame + b"more")[:100]):
            assert sender.send(buffer) == 100
            assert receive_frames(receiver, 1) == [short_frame]
        with pytest.raises(TypeError):
            sender.send("text")  # type: ignore[arg-type]
        with pytest.raises(BufferError):
            sender.send(memoryview(short_frame)[::2])

    on_all_paths(scenario)


def test_an_oversized_frame_is_truncated() -> None:
    def scenario(path: ModuleType) -> None:
        sender, receiver = calls_on(path, "a"), calls_on(path, "b", 100)
        sent = [frame(number, size) for number, size in enumerate((60, 99, 100, 101, 1_000, 60))]
        for entry in sent:
            sender.send(entry)
        assert receive_frames(receiver, len(sent)) == [entry[:100] for entry in sent]

    on_all_paths(scenario)


def test_a_maximum_frame_size_below_one_byte_is_rejected() -> None:
    def scenario(path: ModuleType) -> None:
        for longest in (0, -1):
            with pytest.raises(ValueError, match=f"max_size must be 1 byte or more, got {longest}"):
                calls_on(path, "b", longest)

    on_all_paths(scenario)


def test_a_failed_send_raises_the_kernels_reason() -> None:
    def scenario(path: ModuleType) -> None:
        sender = calls_on(path, "a")
        assert error_name(lambda: sender.send(frame(1, MAX_FRAME + 5))) == "EMSGSIZE"
        assert error_name(lambda: sender.send(b"short")) == "EINVAL"
        assert error_name(lambda: sender.send(frame(2, MAX_FRAME))) == ""
        set_link(netlink_messages.set_down, A)
        assert error_name(lambda: sender.send(frame(3, 60))) == "ENETDOWN"
        set_link(netlink_messages.remove_link, A)
        assert error_name(lambda: sender.send(frame(3, 60))) == "ENXIO"

    on_all_paths(scenario)


def test_a_frame_for_an_interface_without_carrier_fails_with_enobufs() -> None:
    """The kernel returns ENOBUFS only until its link watch notices that the peer is down, so this retries until it does."""

    def scenario(path: ModuleType) -> None:
        sender, receiver = calls_on(path, "a"), calls_on(path, "b")
        deadline = time.monotonic() + 30
        while True:
            assert time.monotonic() < deadline, "the link watch was always faster"
            set_link(netlink_messages.set_down, B)
            reason = error_name(lambda: sender.send(frame(1, 60)))
            set_link(netlink_messages.set_up, B)
            assert reason in ("", "ENOBUFS")
            if reason:
                return
            while receiver.receive() is None:  # until the interface has its carrier again
                sender.send(frame(2, 60))

    on_all_paths(scenario)


def test_an_interface_that_is_down_receives_nothing_until_it_is_up_again() -> None:
    def scenario(path: ModuleType) -> None:
        sender, receiver = calls_on(path, "a"), calls_on(path, "b")
        set_link(netlink_messages.set_down, B)
        assert [receiver.receive() for _ in range(3)] == [None] * 3
        set_link(netlink_messages.set_up, B)
        while (received_frame := receiver.receive()) is None:
            sender.send(frame(1, 60))
        assert received_frame == frame(1, 60)

    on_all_paths(scenario)


def test_frames_received_before_an_interface_went_down_can_be_read() -> None:
    def scenario(path: ModuleType) -> None:
        sender, receiver = calls_on(path, "a"), calls_on(path, "b")
        sent = [frame(number, 60) for number in range(20)]
        for entry in sent:
            sender.send(entry)
        set_link(netlink_messages.set_down, B)
        assert receive_frames(receiver, 20) == sent
        assert receiver.receive() is None

    on_all_paths(scenario)


def test_a_closed_socket_returns_no_prefetched_frames() -> None:
    def scenario(path: ModuleType) -> None:
        sender, receiver = calls_on(path, "a"), calls_on(path, "b")
        for number in range(10):
            sender.send(frame(number, 60))
        assert receive_frames(receiver, 2) == [frame(0, 60), frame(1, 60)]
        for _ in range(2):
            receiver.close()
            assert error_name(receiver.receive) == "EBADF"
            assert error_name(lambda: receiver.send(frame(1, 60))) == "EBADF"
        assert sender.send(frame(11, 60)) == 60

    on_all_paths(scenario)


def test_a_signal_that_interrupts_a_send_runs_its_handler_and_the_frame_is_sent() -> None:
    """A full send buffer blocks `send` until the handler drains it."""

    def scenario(path: ModuleType) -> None:
        local, remote = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sender = path.FrameCalls(local, MAX_FRAME)
        interrupted: list[int] = []

        def drain_at_the_third(number: int, _: object) -> None:
            interrupted.append(number)
            if len(interrupted) == 3:
                while select.select([remote], [], [], 0)[0]:
                    remote.recv(100)

        fill(local)
        signal.signal(signal.SIGALRM, drain_at_the_third)
        signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
        assert sender.send(b"sent") == 4
        signal.setitimer(signal.ITIMER_REAL, 0)
        assert len(interrupted) >= 3
        assert remote.recv(100) == b"sent"

        def fail(_number: int, _: object) -> None:
            raise KeyError("of the handler")

        fill(local)
        signal.signal(signal.SIGALRM, fail)
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        with pytest.raises(KeyError, match="of the handler"):
            sender.send(b"not sent")

    on_all_paths(scenario)


def fill(sender: socket.socket) -> None:
    """Send until the buffer is full."""
    sender.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            sender.send(b"fills")
    sender.setblocking(True)


def on_arena(path: ModuleType, device: str) -> tuple[interpreted_frames.Arena, socket.socket]:
    """Return an arena, and a socket with the options that it needs."""
    raw_socket = open_socket(device)
    for option in (PACKET_AUXDATA, PACKET_VNET_HDR):
        raw_socket.setsockopt(SOL_PACKET, option, 1)
    raw_socket.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    return path.Arena(), raw_socket


def test_a_failing_batch_reports_the_operation_and_the_reason() -> None:
    def scenario(path: ModuleType) -> None:
        arena, sender = on_arena(path, "a")
        too_long, fitting = frame(1, MAX_FRAME + 5), frame(2, 60)
        assert arena.send(sender.fileno(), A, [fitting, fitting, too_long, fitting], []) == (2, errno.EMSGSIZE)
        assert arena.send(sender.fileno(), A, [fitting] * BATCH, []) == (BATCH, 0)
        assert arena.send(sender.fileno(), A, [], []) == (0, 0)
        assert arena.send(sender.fileno(), A, [fitting], [bytes(10)]) == (1, 0)
        with pytest.raises(ValueError, match="at most 64 frames"):
            arena.send(sender.fileno(), A, [fitting] * (BATCH + 1), [])
        with pytest.raises(ValueError, match="no headers or as many as frames"):
            arena.send(sender.fileno(), A, [fitting, fitting], [bytes(10)])
        set_link(netlink_messages.set_down, A)
        assert arena.send(sender.fileno(), A, [fitting], []) == (0, errno.ENETDOWN)
        sender.close()
        assert arena.send(sender.fileno(), A, [fitting], []) == (0, errno.EBADF)

    on_all_paths(scenario)


def test_a_batch_of_an_interface_that_is_down_is_empty_and_a_closed_socket_is_an_error() -> None:
    def scenario(path: ModuleType) -> None:
        arena, receiver = on_arena(path, "b")

        def receive(maximum: int = BATCH) -> tuple[int, int, list[tuple[int, bytes]]]:
            return arena.receive(receiver.fileno(), maximum, 0, MAX_FRAME, lambda *_: None)

        assert receive() == (0, 0, [])
        set_link(netlink_messages.set_down, B)
        assert [receive(), receive()] == [(0, 0, [])] * 2
        for maximum in (0, BATCH + 1, -1):
            with pytest.raises(ValueError, match=f"max_frames must be 1 to 64, got {maximum}"):
                receive(maximum)
        receiver.close()
        assert error_name(receive) == "EBADF"

    on_all_paths(scenario)


def test_an_error_of_the_frame_handler_is_raised_and_its_view_is_released() -> None:
    def scenario(path: ModuleType) -> None:
        arena, receiver = on_arena(path, "b")
        sender = calls_on(path, "a")
        views: list[memoryview] = []

        def keep(_header: bytes, view: memoryview, length: int, *_: int) -> bytes | None:
            views.append(view)
            assert length == len(view) == 100
            return None

        def fail(*_: object) -> bytes | None:
            raise KeyError("of the handler")

        for handler in (keep, fail):
            sender.send(frame(1, 100))
            while not select.select([receiver], [], [], 1)[0]:
                pass
            if handler is keep:
                assert arena.receive(receiver.fileno(), BATCH, 0, 99, keep)[::2] == (1, [])
            else:
                with pytest.raises(KeyError, match="of the handler"):
                    arena.receive(receiver.fileno(), BATCH, 0, 99, fail)
        with pytest.raises(ValueError, match="released"):
            bytes(views[0])

    on_all_paths(scenario)


@pytest.mark.timeout(900)
def test_no_call_leaks() -> None:
    """Repeat each call, also failing ones, so often that a leak of the smallest object shows."""

    def scenario(path: ModuleType) -> None:
        sender, receiver, closed_receiver = calls_on(path, "a"), calls_on(path, "b"), calls_on(path, "b")
        arena, arena_receiver = on_arena(path, "b")
        closed_receiver.close()
        short_frame, too_long = frame(1, 1_000), frame(1, MAX_FRAME + 5)

        def call_each() -> None:
            sender.send(short_frame)
            receiver.receive()
            arena.send(arena_receiver.fileno(), B, [short_frame, too_long], [])
            arena.receive(arena_receiver.fileno(), BATCH, 0, MAX_FRAME, lambda *_: None)
            arena.receive(arena_receiver.fileno(), BATCH, 0, 99, lambda _header, view, *_: bytes(view))
            error_name(lambda: sender.send(too_long))
            error_name(closed_receiver.receive)

        for _ in range(2_000):
            call_each()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in range(LEAK_ROUNDS):
            call_each()
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < LEAK_ROUNDS * SMALLEST_OBJECT // 1024

    on_all_paths(scenario)


def test_objects_are_freed_with_their_memory() -> None:
    def scenario(path: ModuleType) -> None:
        before = 0
        for number in range(1_000):
            if number == 200:
                before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            calls = path.FrameCalls(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM), MAX_FRAME)
            if number % 2:
                calls.close()
            path.Arena()
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 512
        assert len(os.listdir("/proc/self/fd")) < 64

    on_all_paths(scenario)


def test_the_sockets_of_a_build_use_its_frame_path() -> None:
    expected = {"compiled": "testbed.kernel.native_frames", "interpreted": "testbed.kernel.interpreted_frames"}
    assert frame_socket.FrameCalls.__module__ == packet_socket.Arena.__module__ == expected[build()]
    assert native_frames().FrameCalls.__module__ == expected["compiled"]

    def scenario(_: ModuleType) -> None:
        wire = FrameSocket("a", ETHERTYPE, MTU)
        assert wire.next_frame() is None
        assert isinstance(PacketSocket("b", packet_socket.Arena(), 4_096).arena, packet_socket.Arena)

    on_all_paths(scenario)
