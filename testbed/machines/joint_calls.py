"""Calls that several machines carry out together. Each machine waits at a barrier until all have reached it."""

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
class WorkerLoss:
    """Loss of a machine's worker. when: time at which it was noticed, monotonic nanoseconds."""

    error: WorkerLostError
    when: int


Replies = dict[str, Mapping[str, Any]]


def run_joint_call(
    running: Workers, numbers: Mapping[str, int], patience: float
) -> tuple[Replies, dict[str, WorkerLoss]]:
    """Run a joint call on several machines in lockstep; return the replies and the losses, by machine. If the call fails on
    a machine or a machine is lost, the call is stopped on the others. numbers: number of the call on each machine.
    patience: maximum seconds for each stage. Raises the error that the call raised on a machine."""
    barrier = Barrier(len(numbers))
    running_calls = {*numbers}

    def fail(machine: str) -> None:
        barrier.abort()
        for sibling in running_calls - {machine}:
            with suppress(WorkerLostError):  # its own thread reports the loss
                running[sibling].answer_joint(numbers[sibling], STOP)

    def follow(machine: str) -> Mapping[str, Any] | WorkerLoss:
        worker, number = running[machine], numbers[machine]
        try:
            while True:
                reached, reply = worker.joint(number, patience)
                if not reached:
                    break
                with suppress(BrokenBarrierError):  # the call was stopped, which its reply reports
                    barrier.wait()
                    worker.answer_joint(number, PROCEED)
        except WorkerLostError as error:
            loss = WorkerLoss(error, time.monotonic_ns())
            running_calls.discard(machine)
            fail(machine)
            return loss
        except TestbedError:
            running_calls.discard(machine)
            fail(machine)
            raise
        running_calls.discard(machine)
        if "error" in reply:
            fail(machine)
        return cast(Mapping[str, Any], reply)

    with ThreadPoolExecutor(len(numbers)) as pool:
        futures = {machine: pool.submit(follow, machine) for machine in numbers}
    outcomes = {machine: future.result() for machine, future in futures.items()}
    lost = {machine: loss for machine, loss in outcomes.items() if isinstance(loss, WorkerLoss)}
    return {machine: reply for machine, reply in outcomes.items() if not isinstance(reply, WorkerLoss)}, lost
