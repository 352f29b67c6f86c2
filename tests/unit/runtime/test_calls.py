"""Calls between processes, their answers now or later, calls made beside a loop, orders, events: without a cluster."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from testbed.engine.loop import Loop
from testbed.errors import KernelError, TestbedError
from testbed.kernel.waiter import Waiter
from testbed.runtime import event_log
from testbed.runtime.background_calls import BackgroundCalls
from testbed.runtime.calls import Listener, NotListeningError, PendingReply, call
from testbed.runtime.relay.orders import Orders, RelayedDirection, RelayedLink, RelayPaths
from testbed.spec.layout import Impairment


def asked(
    path: Path, answer: Callable[[Loop, Mapping[str, Any]], Any], requests: Iterable[Mapping[str, object]]
) -> list[object]:
    """Send requests and return each answer or error. The loop runs in a child process until it is told to stop."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            loop = Loop(Waiter())
            listener = Listener(loop, path, lambda request: answer(loop, request))
            os.write(writer, b"!")
            loop.run()
            assert listener
        finally:
            os._exit(0)
    os.close(writer)
    assert os.read(reader, 1) == b"!"
    os.close(reader)
    said: list[object] = []

    try:
        for request in requests:
            try:
                said.append(call(path, request))
            except TestbedError as error:
                said.append(error)
        call(path, {"do": "stop"})
    finally:
        os.waitpid(child, 0)
    return said


def stopping(answer: Callable[[Loop, Mapping[str, Any]], Any]) -> Callable[[Loop, Mapping[str, Any]], Any]:
    def either(loop: Loop, request: Mapping[str, Any]) -> Any:
        if request.get("do") == "stop":
            loop.stop()
            return {}
        return answer(loop, request)

    return either


def test_an_answer_comes_back(tmp_path: Path) -> None:
    said = asked(tmp_path / "here", stopping(lambda _, request: {"twice": request["n"] * 2}), [{"n": 1}, {"n": 21}])
    assert said == [{"twice": 2}, {"twice": 42}]


def test_an_error_of_whoever_answers_is_the_callers(tmp_path: Path) -> None:
    def fail(_: Loop, request: Mapping[str, Any]) -> Mapping[str, object]:
        raise TestbedError(f"no {request['what']} today")

    (error,) = asked(tmp_path / "here", stopping(fail), [{"what": "frames"}])
    assert isinstance(error, KernelError)
    assert str(error) == "no frames today"


def test_a_request_that_makes_no_sense_is_told_and_the_next_one_answered(tmp_path: Path) -> None:
    error, right = asked(tmp_path / "here", stopping(lambda _, request: {"n": request["n"]}), [{}, {"n": 1}])
    assert isinstance(error, KernelError)
    assert right == {"n": 1}


def test_an_answer_may_come_later_and_others_meanwhile(tmp_path: Path) -> None:
    """The first caller waits in a thread until the second one has been answered, and then some."""
    waiting: list[PendingReply] = []
    path = tmp_path / "here"
    first: dict[str, object] = {}
    caller = threading.Thread(target=lambda: first.update(call(path, {"do": "wait"})))

    def answer(loop: Loop, request: Mapping[str, Any]) -> Mapping[str, object] | PendingReply:
        match request["do"]:
            case "wait":
                waiting.append(PendingReply())
                return waiting[0]
            case "is one waiting":
                return {"waits": bool(waiting)}
            case _:
                loop.at(loop.now() + 1_000_000, lambda _: waiting[0].complete({"waited": True}))
                return {"at once": True}

    def requests() -> Iterator[Mapping[str, object]]:
        caller.start()
        while call(path, {"do": "is one waiting"}) != {"waits": True}:
            pass
        yield {"do": "tell"}
        caller.join()

    assert asked(path, stopping(answer), requests()) == [{"at once": True}]
    assert first == {"waited": True}


def test_an_answer_that_is_known_before_anybody_hears_it_is_told() -> None:
    later, heard = PendingReply(), list[Mapping[str, object]]()
    later.complete({"n": 1})
    later.add_callback(heard.append)
    assert heard == [{"n": 1}]


@pytest.mark.parametrize("there", [False, True])
def test_where_nobody_listens_the_caller_is_told(tmp_path: Path, there: bool) -> None:
    """No socket, or one that a killed process has left."""
    path = tmp_path / "here"
    if there:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as left:
            left.bind(str(path))
    with pytest.raises(NotListeningError):
        call(path, {"do": "anything"})


def test_the_path_of_a_socket_may_be_long(tmp_path: Path) -> None:
    directory = tmp_path / ("d" * 100) / ("e" * 100)
    directory.mkdir(parents=True)
    assert asked(directory / "here", stopping(lambda _, request: request), [{"n": 1}]) == [{"n": 1}]


# Beside a loop


@pytest.fixture
def loop() -> Iterator[Loop]:
    waiter = Waiter()
    yield Loop(waiter)
    waiter.close()


def test_calls_that_wait_are_made_together_and_the_loop_hears_of_the_last_ones_end(loop: Loop) -> None:
    """Each call waits until all others have begun, so sequential calls would never end."""
    barrier = threading.Barrier(8, timeout=30)
    ended: list[int] = []
    with contextlib.closing(BackgroundCalls(loop)) as aside:
        aside.make([lambda: ended.append(barrier.wait())] * 8, loop.stop)
        loop.run()
    assert sorted(ended) == list(range(8))


def test_of_no_calls_the_loop_hears_too_and_of_very_many(loop: Loop) -> None:
    made: list[int] = []
    with contextlib.closing(BackgroundCalls(loop)) as aside:
        aside.make([], lambda: aside.make([lambda: made.append(1)] * 500, loop.stop))
        loop.run()
    assert len(made) == 500


# Orders and events


def test_orders_come_back_from_their_file(tmp_path: Path) -> None:
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
            ),
        ),
        {"a.txt": "1\n2\n"},
        "/tmp/fates",
        3,
    )
    places = RelayPaths(tmp_path)
    assert places.read_orders() is None
    places.orders.write_text(orders.to_json())
    assert places.read_orders() == orders
    shares = [orders.share(number).links for number in range(3)]
    assert sorted(link.name for share in shares for link in share) == [link.name for link in orders.links]


def test_events_are_read_in_the_order_in_which_they_were_written(tmp_path: Path) -> None:
    assert list(event_log.read(tmp_path)) == []
    for number in range(3):
        event_log.record(tmp_path, "tested", number=number)
    found = list(event_log.read(tmp_path))
    assert [(event["event"], event["number"]) for event in found] == [("tested", 0), ("tested", 1), ("tested", 2)]
    assert [event["clock"] for event in found] == sorted(event["clock"] for event in found)
    assert all(json.dumps(dict(event)) for event in found)


def test_an_event_of_a_cluster_that_is_gone_is_nobodys(tmp_path: Path) -> None:
    event_log.record(tmp_path / "gone", "tested")
    assert not (tmp_path / "gone").exists()
