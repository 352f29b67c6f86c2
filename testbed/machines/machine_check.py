"""Check of a machines file: log in to each machine, and compare its report with the file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from testbed.errors import TestbedError
from testbed.machines.machine_report import MachineReport
from testbed.machines.remote_workers import RemoteWorker, start_each, try_call_each
from testbed.spec.machines import Machine
from testbed.spec.units import format_size


@dataclass(frozen=True, slots=True)
class MachineFinding:
    """Result of the check of a machine. problem: reason why it cannot be used, or empty. report: None if the machine sent
    none."""

    machine: Machine
    problem: str
    report: MachineReport | None


def check(machines: Sequence[Machine]) -> list[MachineFinding]:
    """Check machines concurrently. The finding on a machine that cannot be reached contains the error."""
    started = start_each(machines)
    running = {name: worker for name, worker in started.items() if isinstance(worker, RemoteWorker)}
    try:
        underlays = {machine.name: machine.underlay or "" for machine in machines}
        answers = {**started, **try_call_each(running, "report", underlay=underlays)}
    finally:
        for worker in running.values():
            worker.close()
    return [_finding(machine, answers[machine.name]) for machine in machines]


def _finding(machine: Machine, answer: object) -> MachineFinding:
    if isinstance(answer, TestbedError):
        return MachineFinding(machine, str(answer), None)
    assert isinstance(answer, dict)
    report = MachineReport.from_json(answer)
    return MachineFinding(machine, "; ".join(contradictions(machine, report)), report)


def contradictions(machine: Machine, report: MachineReport) -> Iterator[str]:
    """Yield a sentence for each resource that the machines file states and the machine lacks, and for network namespaces if
    it cannot make them."""
    if (lacking := report.missing("network namespaces")) is not None:
        yield f"it cannot make network namespaces: {lacking.detail}"
    if machine.cores is not None and machine.cores > report.cores:
        yield f"it has {report.cores} cores, and the file says {machine.cores}"
    if machine.memory is not None and machine.memory > report.memory:
        yield f"it has {report.memory / 2**30:.1f} GiB of memory, and the file says {format_size(machine.memory)}"
    if machine.underlay_mtu is not None and machine.underlay is not None and machine.underlay_mtu > report.underlay_mtu:
        yield (
            f"the interface with {machine.underlay} has the MTU {report.underlay_mtu:,}, and the file says "
            f"{machine.underlay_mtu:,}"
        )
