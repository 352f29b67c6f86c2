"""Calls between processes with immediate or deferred replies, background calls, relay orders, and events."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from testbed.engine.loop import Loop
from testbed.errors import KernelError, TestbedError, UnreadableStateError
from testbed.kernel.children import fork
from testbed.kernel.waiter import Waiter
from testbed.runtime import event_log
from testbed.runtime.background_calls import BackgroundCalls
from testbed.runtime.calls import Listener, NotListeningError, PendingReply, call, listen
from testbed.runtime.relay.orders import Orders, RelayedDirection, RelayedLink, RelayPaths
from testbed.spec.layout import Impairment


def replies_to(
    path: Path, handler: Callable[[Loop, Mapping[str, Any]], Any], requests: Iterable[Mapping[str, object]]
) -> list[object]:
    """Send requests; return each reply or error. The loop runs in a child process until it gets the request "stop"."""
    reader, writer = os.pipe()
    child = fork()
    if child == 0:
        try:
            loop = Loop(Waiter())
            listener = Listener(loop, path, lambda request: handler(loop, request))
            os.write(writer, b"!")
            loop.run()
            assert listener
        finally:
            os._exit(0)
    os.close(writer)
    assert os.read(reader, 1) == b"!"
    os.close(reader)
    replies: list[object] = []

    try:
        for request in requests:
            try:
                replies.append(call(path, request))
            except TestbedError as error:
                replies.append(error)
        call(path, {"do": "stop"})
    finally:
        os.kill(child, signal.SIGKILL)  # it has ended or is ending, unless a call failed
        os.waitpid(child, 0)
    return replies


def with_stop(handler: Callable[[Loop, Mapping[str, Any]], Any]) -> Callable[[Loop, Mapping[str, Any]], Any]:
    """Extend a handler by the request "stop", which stops the loop."""

    def handle(loop: Loop, request: Mapping[str, Any]) -> Any:
        if request.get("do") == "stop":
            loop.stop()
            return {}
        return handler(loop, request)

    return handle


def test_each_request_gets_its_reply(tmp_path: Path) -> None:
    handler = with_stop(lambda _, request: {"twice": request["n"] * 2})
    assert replies_to(tmp_path / "socket", handler, [{"n": 1}, {"n": 21}]) == [{"twice": 2}, {"twice": 42}]


@pytest.mark.parametrize("size", [160 << 10, 200 << 10, 4 << 20])
def test_requests_and_replies_may_be_longer_than_a_packet(tmp_path: Path, size: int) -> None:
    """About 160 KiB, the maximum of a packet; more, which the kernel still sends at once; and many times its limit."""
    handler = with_stop(lambda _, request: {"links": request["links"]})
    links = [f"n{number}--s1" for number in range(size // 14)]
    request = {"links": [*links, "x" * (size - len(json.dumps({"links": links})))]}
    short = {"links": ["n1--s1"]}
    assert replies_to(tmp_path / "socket", handler, [request, short]) == [request, short]


def test_an_error_of_the_handler_is_raised_in_the_caller(tmp_path: Path) -> None:
    def fail(_: Loop, request: Mapping[str, Any]) -> Mapping[str, object]:
        raise TestbedError(f"no {request['what']} today")

    (error,) = replies_to(tmp_path / "socket", with_stop(fail), [{"what": "frames"}])
    assert isinstance(error, KernelError)
    assert str(error) == "no frames today"


def test_after_an_invalid_request_the_next_one_is_handled(tmp_path: Path) -> None:
    handler = with_stop(lambda _, request: {"n": request["n"]})
    error, reply = replies_to(tmp_path / "socket", handler, [{}, {"n": 1}])
    assert isinstance(error, KernelError)
    assert reply == {"n": 1}


def test_a_pending_reply_does_not_delay_other_replies(tmp_path: Path) -> None:
    """The first caller waits in a thread until after the second one has its reply."""
    pending_replies: list[PendingReply] = []
    path = tmp_path / "socket"
    first: dict[str, object] = {}
    caller = threading.Thread(target=lambda: first.update(call(path, {"do": "wait"})))

    def handler(loop: Loop, request: Mapping[str, Any]) -> Mapping[str, object] | PendingReply:
        match request["do"]:
            case "wait":
                pending_replies.append(PendingReply())
                return pending_replies[0]
            case "has pending":
                return {"waits": bool(pending_replies)}
            case _:
                loop.at(loop.now() + 1_000_000, lambda _: pending_replies[0].complete({"waited": True}))
                return {"at once": True}

    def requests() -> Iterator[Mapping[str, object]]:
        caller.start()
        while call(path, {"do": "has pending"}) != {"waits": True}:
            pass
        yield {"do": "tell"}
        caller.join()

    assert replies_to(path, with_stop(handler), requests()) == [{"at once": True}]
    assert first == {"waited": True}


def test_a_callback_added_after_completion_gets_the_reply() -> None:
    pending, replies = PendingReply(), list[Mapping[str, object]]()
    pending.complete({"n": 1})
    pending.add_callback(replies.append)
    assert replies == [{"n": 1}]


@pytest.mark.parametrize("exists", [False, True])
def test_a_call_without_a_listener_raises(tmp_path: Path, exists: bool) -> None:
    """The socket is missing, or was left by a killed process."""
    path = tmp_path / "socket"
    if exists:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stale_socket:
            stale_socket.bind(str(path))
    with pytest.raises(NotListeningError):
        call(path, {"do": "anything"})


def test_the_path_of_a_socket_may_exceed_the_limit_of_unix_sockets(tmp_path: Path) -> None:
    directory = tmp_path / ("d" * 100) / ("e" * 100)
    directory.mkdir(parents=True)
    assert replies_to(directory / "socket", with_stop(lambda _, request: request), [{"n": 1}]) == [{"n": 1}]


# Background calls


@pytest.fixture
def loop() -> Iterator[Loop]:
    waiter = Waiter()
    yield Loop(waiter)
    waiter.close()


def test_a_caller_waits_while_too_many_others_wait(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with listen(path) as listener:
        listener.setblocking(True)
        waiting = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(30)]
        for connection in waiting:
            connection.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                connection.connect(str(path))
        with pytest.raises(KernelError, match=r"no answer from the process at .* after 0\.1 s"):
            call(path, {}, 0.1)

        def serve_all() -> None:
            """Serve the callers in their order; those that wait have ended without a request."""
            for connection in waiting:
                connection.close()
            request = b""
            while not request:
                connection, _ = listener.accept()
                with connection:
                    request = connection.recv(100)
                    if request:
                        connection.send(b'{"answer": 1}')

        server = threading.Timer(0.1, serve_all)
        server.start()
        assert call(path, {}, 30) == {"answer": 1}
        server.join()


def test_blocking_calls_run_in_parallel_and_the_callback_follows_the_last_one(loop: Loop) -> None:
    """Each call waits until all others have begun, so sequential calls would never end."""
    barrier = threading.Barrier(8, timeout=30)
    finished: list[int] = []
    with contextlib.closing(BackgroundCalls(loop)) as background:
        background.run([lambda: finished.append(barrier.wait())] * 8, loop.stop)
        loop.run()
    assert sorted(finished) == list(range(8))


def test_the_callback_follows_any_number_of_calls(loop: Loop) -> None:
    calls: list[int] = []
    with contextlib.closing(BackgroundCalls(loop)) as background:
        background.run([], lambda: background.run([lambda: calls.append(1)] * 500, loop.stop))
        loop.run()
    assert len(calls) == 500


def test_calls_for_which_no_thread_can_start_are_made_all_the_same(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    start, started, calls = threading.Thread.start, [], []

    def start_two(thread: threading.Thread) -> None:
        if len(started) == 2:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_two)
    with contextlib.closing(BackgroundCalls(loop)) as background:
        background.run([lambda: calls.append(1)] * 20, loop.stop)
        loop.run()
    assert (len(started), len(calls)) == (2, 20)


def test_the_callback_follows_a_call_that_raises_in_the_calling_thread(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    def close_twice() -> None:
        raise OSError("bad file descriptor")

    monkeypatch.setattr(threading.Thread, "start", fail)
    callbacks: list[str] = []
    with contextlib.closing(BackgroundCalls(loop)) as background:
        with pytest.raises(OSError, match="bad file descriptor"):
            background.run([close_twice], lambda: (callbacks.append("done"), loop.stop()))
        loop.at(loop.now() + 10_000_000_000, lambda _: loop.stop())  # only without the callback
        loop.run()
    assert callbacks == ["done"]


def test_calls_after_more_failures_than_threads_are_made(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    errors: list[object] = []
    monkeypatch.setattr(threading, "excepthook", lambda failure: errors.append(failure.exc_value))

    def close_twice() -> None:
        raise OSError("bad file descriptor")

    calls: list[int] = []
    with contextlib.closing(BackgroundCalls(loop)) as background:
        background.run([close_twice] * 100 + [lambda: calls.append(1)] * 10, loop.stop)
        loop.run()
    assert len(calls) == 10
    assert {str(error) for error in errors} <= {"bad file descriptor"}


# Orders and events


def test_orders_are_read_back_from_their_file(tmp_path: Path) -> None:
    orders = Orders(
        2**64 - 1,
        (
            RelayedLink(
                "n1:eth0--s1:1",
                "n1.eth0",
                "patch",
                RelayedDirection(Impairment(delay=5, loss=0.1), {"1.0": "drop udp"}),
            ),
            RelayedLink(
                "n2:eth0--s1:2",
                "n2.eth0",
                "patch2",
                backward=RelayedDirection(Impairment(gemodel=(0.1, 0.2, 1.0, 0.0))),
                gso=(False, True),
            ),
        ),
        {"a.txt": "1\n2\n"},
        "/tmp/fates",
        3,
    )
    paths = RelayPaths(tmp_path)
    assert paths.read_orders() is None
    paths.orders.write_text(orders.to_json())
    assert paths.read_orders() == orders
    shares = [orders.share(number).links for number in range(3)]
    assert sorted(link.name for share in shares for link in share) == [link.name for link in orders.links]
    assert orders.numbers() == [number for number, share in enumerate(shares) if share]


def test_written_orders_are_read_back_and_orders_of_another_writer_replace_them(tmp_path: Path) -> None:
    paths, others = RelayPaths(tmp_path), Orders(2, (RelayedLink("n1--n2", "a", "b", gso=(True, True)),))
    paths.write_orders(Orders(1))
    assert paths.read_orders() == Orders(1)
    paths.orders.write_text(others.to_json())
    assert paths.read_orders() == others
    paths.orders.write_text("damaged")
    with pytest.raises(UnreadableStateError):
        paths.read_orders()


def test_events_are_read_in_the_order_of_writing(tmp_path: Path) -> None:
    assert list(event_log.read(tmp_path)) == []
    for number in range(3):
        event_log.record(tmp_path, "tested", number=number)
    events = list(event_log.read(tmp_path))
    assert [(event["event"], event["number"]) for event in events] == [("tested", 0), ("tested", 1), ("tested", 2)]
    assert [event["clock"] for event in events] == sorted(event["clock"] for event in events)
    assert all(json.dumps(dict(event)) for event in events)


def test_an_event_of_a_removed_cluster_is_dropped(tmp_path: Path) -> None:
    event_log.record(tmp_path / "gone", "tested")
    assert not (tmp_path / "gone").exists()
