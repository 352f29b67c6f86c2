"""Continuous numbered frames between nodes while a test changes their links, and access to relay and events."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from testbed import RunningCluster
from testbed.cluster.records.state import Store
from testbed.cluster.services import relay_client
from testbed.kernel import processes
from testbed.runtime import event_log
from testbed.runtime.relay.orders import RelayedLink, RelayPaths
from testbed.runtime.supervision import running_supervisor
from tests.live import node_sockets
from tests.live.forked_children import Background, background
from tests.live.machine_state import eventually

RECEIVE_BYTES = 64 << 20
_SO_RCVBUFFORCE = 33
GAP = 150_000  # ns between two frames of a flow


def events_of(cluster: RunningCluster, event: str) -> list[Mapping[str, Any]]:
    """Return the cluster's events of this kind."""
    return [record for record in event_log.read(Store().directory(cluster.name)) if record["event"] == event]


def relay_report(cluster: RunningCluster) -> dict[str, Any]:
    """Return the relay's report of itself."""
    report = relay_client.report(Store(), cluster.state)
    assert report is not None
    return report


def relay_pid(cluster: RunningCluster) -> int:
    pid: int = relay_report(cluster)["pid"]
    return pid


def supervisor_of(cluster: RunningCluster) -> processes.Identity:
    """Return the cluster's supervisor process."""
    supervisor = running_supervisor(Store().directory(cluster.name))
    assert supervisor is not None
    return supervisor


def relayed_links(cluster: RunningCluster) -> dict[str, RelayedLink]:
    """Return the links in the relay's orders, by name."""
    orders = RelayPaths(Store().directory(cluster.name)).read_orders()
    return {link.name: link for link in orders.links} if orders is not None else {}


@dataclass(slots=True)
class Flow:
    """Numbered frames from one node to another. `sent` is set by `Traffic.stop`."""

    source: str
    sink: str
    arrived: list[int] = field(default_factory=list)
    sent: int = 0


class Traffic:
    """Numbered frames at intervals of GAP for each pair of nodes, each sent by its own process."""

    def __init__(self, cluster: RunningCluster, stack: ExitStack, *pairs: tuple[str, str]) -> None:
        self.flows = [Flow(source, sink) for source, sink in pairs]
        self._stop, self._stop_writer = os.pipe()
        stack.callback(os.close, self._stop)
        self._open = True
        stack.callback(self._close)
        nics = stack.enter_context(node_sockets.nic_sockets(cluster))
        self._sinks = {node: nics[node] for node in {flow.sink for flow in self.flows}}
        for sink in self._sinks.values():
            sink.setsockopt(1, _SO_RCVBUFFORCE, RECEIVE_BYTES)
        self._macs = {node_sockets.mac(cluster, flow.source): flow for flow in self.flows}
        self._senders: list[Background] = [
            stack.enter_context(background(self._sender(cluster, nics[flow.source], flow))) for flow in self.flows
        ]

    def _close(self) -> None:
        if self._open:
            os.close(self._stop_writer)
            self._open = False

    def _sender(
        self, cluster: RunningCluster, sender_socket: Any, flow: Flow
    ) -> Callable[[Callable[[object], None]], None]:
        macs = node_sockets.mac(cluster, flow.sink), node_sockets.mac(cluster, flow.source)

        def send(report: Callable[[object], None]) -> None:
            os.close(self._stop_writer)
            os.set_blocking(self._stop, False)
            number, next_time = 0, time.monotonic_ns()
            while not _closed(self._stop):
                number += 1
                try:
                    sender_socket.send(node_sockets.numbered_frame(*macs, number))
                except OSError:  # the NIC's link is down
                    number -= 1
                next_time += GAP
                time.sleep(max(0, next_time - time.monotonic_ns()) / 1e9)  # pacing
            report(number)

        return send

    def update(self) -> list[Flow]:
        """Return the flows with the frames that have arrived until now."""
        for sink, packet_socket in self._sinks.items():
            for data in node_sockets.received(packet_socket):
                flow = self._macs.get(data[6:12])
                if flow is not None and flow.sink == sink:
                    flow.arrived.append(int.from_bytes(data[14:18], "big"))
        return self.flows

    def wait(self, count: int = 100) -> None:
        """Wait until `count` more frames have arrived in every direction."""
        expected = [len(flow.arrived) + count for flow in self.update()]
        eventually(
            lambda: all(len(flow.arrived) >= count for flow, count in zip(self.update(), expected, strict=True)),
            f"{count} frames more arrive in every direction: {[(f.source, f.sink, len(f.arrived)) for f in self.flows]}",
        )

    def stop(self) -> list[Flow]:
        """Stop sending and set each flow's `sent`. Frames in flight may still arrive: call `update` again."""
        self._close()
        for sender, flow in zip(self._senders, self.flows, strict=True):
            sent = sender.next_report()
            assert isinstance(sent, int)
            flow.sent = sent
        return self.update()


def _closed(descriptor: int) -> bool:
    try:
        return os.read(descriptor, 1) == b""
    except BlockingIOError:
        return False


@contextmanager
def frames_between(cluster: RunningCluster, *pairs: tuple[str, str]) -> Iterator[Traffic]:
    """Send frames from each pair's first to its second node until `stop` or the end."""
    with ExitStack() as stack:
        traffic = Traffic(cluster, stack, *pairs)
        traffic.wait()
        yield traffic


def all_events(cluster: RunningCluster) -> str:
    """Return all events as text for an assertion message."""
    return "\n".join(json.dumps(dict(event)) for event in event_log.read(Store().directory(cluster.name)))
