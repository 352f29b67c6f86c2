"""Calls that several machines carry out together: each waits at its barriers until all machines have reached them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from threading import Barrier, BrokenBarrierError
from typing import Any, cast

from testbed.errors import TestbedError
from testbed.machines.remote_workers import WorkerLostError
from testbed.machines.request_reader import PROCEED, STOP
from testbed.machines.spread import Workers


@dataclass(frozen=True, slots=True)
class Loss:
    """Loss of a machine's worker. when: it was noticed, monotonic nanoseconds."""

    error: WorkerLostError
    when: int


Replies = dict[str, Mapping[str, Any]]


def in_step(running: Workers, numbers: Mapping[str, int], patience: float) -> tuple[Replies, dict[str, Loss]]:
    """Take the machines' parts of a joint call through its barriers; return their replies, and the machines that were lost.
    If one fails or is lost, the others are stopped. numbers: numbers of the calls. patience: seconds for each stage. Raises
    the error of a machine on which the call raises one."""
    together = Barrier(len(numbers))
    under_way = {*numbers}

    def fail(machine: str) -> None:
        together.abort()
        for sibling in under_way - {machine}:
            with suppress(WorkerLostError):  # its own thread tells
                running[sibling].answer_joint(numbers[sibling], STOP)

    def follow(machine: str) -> Mapping[str, Any] | Loss:
        worker, number = running[machine], numbers[machine]
        try:
            while True:
                reached, reply = worker.joint(number, patience)
                if not reached:
                    break
                with suppress(BrokenBarrierError):  # it is stopped, and says so in its reply
                    together.wait()
                    worker.answer_joint(number, PROCEED)
        except WorkerLostError as error:
            loss = Loss(error, time.monotonic_ns())
            under_way.discard(machine)
            fail(machine)
            return loss
        except TestbedError:
            under_way.discard(machine)
            fail(machine)
            raise
        under_way.discard(machine)
        if "error" in reply:
            fail(machine)
        return cast(Mapping[str, Any], reply)

    with ThreadPoolExecutor(len(numbers)) as pool:
        started = {machine: pool.submit(follow, machine) for machine in numbers}
    found = {machine: future.result() for machine, future in started.items()}
    lost = {machine: loss for machine, loss in found.items() if isinstance(loss, Loss)}
    return {machine: reply for machine, reply in found.items() if not isinstance(reply, Loss)}, lost
