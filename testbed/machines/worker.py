"""The worker of a machine: one process that answers requests, line by line, until its standard input ends.

A line is a JSON object. A request has a number, the name of a call and its arguments; the answer has the number and a
reply, or the error with its class. Requests are answered one after the other, in their order. The controller starts the
worker by ssh. When the connection ends (see `request_reader`), so does the worker: a program that it runs in a node is
killed, and a change in progress is first finished or rolled back.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from io import TextIOWrapper
from typing import IO, Any, Final

from testbed.cluster import removal
from testbed.cluster.access.node_programs import node_context, start
from testbed.cluster.faults import fault_injection
from testbed.cluster.faults.fault_injection import Injected
from testbed.cluster.faults.injections import Injection
from testbed.cluster.garbage import collect
from testbed.cluster.records.state import Store
from testbed.cluster.records.status import status
from testbed.cluster.startup import bring_up
from testbed.errors import TestbedError, reason_of
from testbed.kernel import echo
from testbed.machines import machine_report
from testbed.machines.request_reader import INPUT, KEEPALIVE_INTERVAL, PROCEED, STOP, RequestReader
from testbed.spec.layout import ConfiguredDatapath
from testbed.spec.layout_json import from_json, to_json


def _up(name: str, layout: Mapping[str, Any], origin: str, asked: ConfiguredDatapath, lasting: bool) -> object:
    result = bring_up(Store(), from_json(layout), name=name, origin=origin, lasting=lasting, asked=asked)
    return {"operations": len(result.operations), "changed": result.changed}


def _survey(name: str, underlay: str) -> object:
    """Return the data for a plan: this machine's part of the cluster, and its report, without the capabilities that a plan
    does not need."""
    return {"report": asdict(machine_report.report(underlay, complete=False)), "present": _present(name)}


def _present(name: str) -> object:
    """Return a cluster's nodes and switches on this machine, and the remote address, recorded delay and machine of each
    tunnel."""
    state = Store().read(name)
    if state is None or state.abandoned:
        return {"owners": [], "tunnels": []}
    layout = state.layout
    return {
        "owners": [*(node.name for node in layout.nodes), *(switch.name for switch in layout.switches)],
        "tunnels": [[tunnel.remote, tunnel.delay, tunnel.machine] for tunnel in layout.part.tunnels]
        if layout.part is not None
        else [],
    }


def _part(name: str, everywhere: bool) -> object:
    """Return the layout of a cluster's part, and its injections. everywhere: whether to include the nodes of all
    machines."""
    state = Store().choose(name)
    return {
        "layout": to_json(state.layout, None if everywhere else []),
        "injected": [injection.to_json() for injection in state.injected],
        "issued": state.issued,
    }


def _inject(name: str, injection: Mapping[str, Any], seconds: float) -> object:
    return _injected_to_json(fault_injection.apply_injection(Store(), name, Injection.from_json(injection), seconds))


def _injected_to_json(result: Injected) -> object:
    datapaths = result.state.datapaths
    return {
        "number": result.injection.number,
        "datapaths": {link: datapaths.get(link, "direct") for link in result.injection.links},
        "took": result.took,
    }


def _heal(name: str, numbers: Sequence[int]) -> object:
    """Lift those of these injections that are in force on this machine; return their numbers."""
    store = Store()
    in_force = {injection.number for injection in store.choose(name).injected} & {*numbers}
    if not in_force:
        return []
    return [injection.number for injection in fault_injection.heal(store, name, sorted(in_force))]


def _down(name: str) -> object:
    store = Store()
    if name not in store.names():
        return {"was_there": False}
    removal.down(store, name)
    return {"was_there": True}


def _status(name: str) -> object:
    cluster_status = status(Store().choose(name))
    return {
        "nodes": [asdict(node) for node in cluster_status.nodes],
        "links": [{"name": link.link.name, "exists": link.exists, "up": link.up} for link in cluster_status.links],
        "injected": [[injection.number, injection.what] for injection in cluster_status.state.injected],
        "missing": list(cluster_status.missing),
    }


def _execute(requests: RequestReader, name: str, node: str, command: Sequence[str]) -> object:
    """Run a program in a node until it has ended and its output is closed. If the controller disconnects, kill the program's
    process group and raise TestbedError; a process that has left the group may keep the output open."""
    store = Store()
    context = node_context(store, store.choose(name), node)
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    with start(context, command, stdin=null, stdout=pipe, stderr=pipe, group=True) as program:
        for stream in (program.stdout, program.stderr):
            assert isinstance(stream, TextIOWrapper)
            stream.reconfigure(errors="backslashreplace")  # output that is not UTF-8 must not end the worker
        while True:
            try:
                stdout, stderr = program.communicate(timeout=KEEPALIVE_INTERVAL)
                return {"code": program.returncode, "stdout": stdout, "stderr": stderr}
            except subprocess.TimeoutExpired:
                if not requests.is_open():
                    with suppress(ProcessLookupError):
                        os.killpg(program.pid, signal.SIGKILL)
                    raise TestbedError("the controller has disconnected") from None


CALLS: Final[Mapping[str, Callable[..., object]]] = {
    "report": lambda underlay: asdict(machine_report.report(underlay)),
    "clock": time.monotonic_ns,
    "wall_clock": time.time_ns,
    "clusters": lambda: Store().names(),
    "survey": _survey,
    "present": _present,
    "round_trips": echo.round_trips_to_each,
    "up": _up,
    "down": _down,
    "status": _status,
    "part": _part,
    "inject": _inject,
    "load_processor": lambda **arguments: _injected_to_json(fault_injection.load_processor(Store(), **arguments)),
    "load_link": lambda **arguments: _injected_to_json(fault_injection.load_link(Store(), **arguments)),
    "heal": _heal,
    "gc": lambda: [asdict(finding) for finding in collect(Store())],
}
"""The calls of a worker by name, except `exec`. A request's arguments are passed by keyword, and the result is the
reply."""


class Dialogue:
    """Exchange of messages with the controller during a call, such as a joint call on several machines."""

    def __init__(self, requests: RequestReader, answers: IO[bytes], number: int) -> None:
        """number: number of the request."""
        self._requests = requests
        self._answers = answers
        self._number = number

    @property
    def requests(self) -> RequestReader:
        return self._requests

    def send(self, **fields: object) -> None:
        """Send the controller an intermediate message, before the reply."""
        self._answers.write(json.dumps({"number": self._number, **fields}).encode() + b"\n")

    def barrier(self, stage: str) -> None:
        """Report that this machine has reached a stage, and wait until all machines have. Raises TestbedError if a machine
        fails or the controller disconnects."""
        self.send(reached=stage)
        self._next()

    def check(self) -> None:
        """Raise TestbedError if another machine has failed or the controller has disconnected."""
        if self._requests.has_line() or not self._requests.is_open():
            self._next()

    def _next(self) -> None:
        line = next(iter(self._requests), None)
        if line is None:
            raise TestbedError("the controller has disconnected")
        if json.loads(line)["call"] != PROCEED:
            raise TestbedError("another machine has failed")


JointCall = Callable[..., object]
"""A call whose first argument is a `Dialogue`."""


def main(joint: Mapping[str, JointCall], more: Mapping[str, Callable[..., object]]) -> None:
    """Answer requests from standard input on standard output; all other output of this process goes to standard error.
    joint: joint calls on several machines, by name. more: calls in addition to `CALLS`, by name."""
    requests = RequestReader(os.dup(0))
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    serve(requests, answers, joint, more)


def serve(
    requests: RequestReader,
    answers: IO[bytes],
    joint: Mapping[str, JointCall],
    more: Mapping[str, Callable[..., object]],
) -> None:
    """Answer requests until the input ends, or the controller has closed the output. joint, more: see `main`."""
    calls: Mapping[str, Callable[..., object]] = {**CALLS, **more, "exec": partial(_execute, requests)}
    for line in requests:
        request = json.loads(line)
        number, call = request["number"], request["call"]
        if call in (PROCEED, STOP, INPUT):  # for a call that has ended in the meantime
            continue
        handler = calls[call] if call in calls else partial(joint[call], Dialogue(requests, answers, number))
        answer = {"number": number, **_answer(handler, request["arguments"])}
        try:
            # A program's result can be any object: what JSON cannot represent is sent as its repr.
            answers.write(json.dumps(answer, default=repr).encode() + b"\n")
        except BrokenPipeError:
            return


def _answer(call: Callable[..., object], arguments: Mapping[str, Any]) -> Mapping[str, object]:
    try:
        return {"reply": call(**arguments)}
    except TestbedError as error:
        return {"error": str(error), "class": type(error).__name__}
    except OSError as error:
        return {"error": reason_of(error), "class": TestbedError.__name__}
