"""Queries of an attached host process to the agent of its NIC: a late reply is not the reply to a later query."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any, cast

import pytest

from protocols.core.split_memory import SplitDriver
from testbed.kernel.filesystem import make_sealed
from testbed.runtime.shared import attach_protocol
from testbed.runtime.shared.attach_protocol import NicGoneError
from testbed.runtime.shared.attachment import Attachment
from testbed.runtime.shared.region import RegionLayout

LAYOUT = RegionLayout(entries=8, descriptors=100, heap=5_000)
ADAPTER: dict[str, Any] = {
    "number": 0, "addresses": ["020000000001"], "mtu": 1500, "incarnation": 1, "routed": False, "ordered": True,
    "hosts": [], "names": ["n1"], "function": 0, "place": [0, 1, 1],
}  # fmt: skip


@pytest.fixture
def attached() -> Iterator[tuple[Attachment, socket.socket]]:
    """An attachment, and its agent's end of the connection. The test is the agent, once it has attached the host."""
    device = f"test{os.getpid()}"
    with closing(attach_protocol.listen(device)) as listener:
        listener.setblocking(True)
        agent_ends: list[socket.socket] = []

        def attach_host() -> None:
            connection, _ = listener.accept()
            agent_ends.append(connection)
            attach_protocol.receive(connection)
            memory, eventfd, (reading, writing) = make_sealed("test", LAYOUT.size), os.eventfd(0), os.pipe()
            layout = {"entries": LAYOUT.entries, "descriptors": LAYOUT.descriptors, "heap": LAYOUT.heap}
            attach_protocol.send(connection, ADAPTER | layout, (memory, eventfd, reading))
            for descriptor in (memory, eventfd, reading, writing):
                os.close(descriptor)

        agent = threading.Thread(target=attach_host)
        agent.start()
        split_driver = cast(SplitDriver, SimpleNamespace(host=lambda *_: None))
        with closing(Attachment(device, 0x88B5, split_driver)) as attachment:
            agent.join()
            with closing(agent_ends[0]) as agent_end:
                yield attachment, agent_end


def test_a_late_reply_is_not_the_reply_to_the_next_query(attached: tuple[Attachment, socket.socket]) -> None:
    attachment, agent = attached
    for _ in range(2):
        with pytest.raises(NicGoneError, match="has not answered within"):
            attachment.pending_work()
    for reply in ({"waiting": ["late"]}, {"waiting": ["later"]}, {"counted": {"frames": 3}}, {"waiting": ["in time"]}):
        attach_protocol.send(agent, reply)
    assert attachment.report() == {"counted": {"frames": 3}}
    assert attachment.pending_work() == ["in time"]


def test_a_late_reply_may_arrive_between_queries(attached: tuple[Attachment, socket.socket]) -> None:
    attachment, agent = attached
    with pytest.raises(NicGoneError, match="has not answered within"):
        attachment.pending_work()
    attach_protocol.send(agent, {"waiting": ["late"]})
    attachment.check_agent()
    attach_protocol.send(agent, {"waiting": ["in time"]})
    assert attachment.pending_work() == ["in time"]
