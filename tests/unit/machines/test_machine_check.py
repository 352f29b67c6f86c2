"""Contradictions between a machine's report and its file."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

from testbed.kernel.capability_probe import Capability
from testbed.machines.machine_check import contradictions
from testbed.machines.machine_report import MachineReport
from testbed.spec.machines import Machine

ABLE = Capability("network namespaces", True, "made one", "everything", "")
REPORT = MachineReport("lab1", "0.1.0", "3.12.3", "6.12.0", 8, 16 * 2**30, 1500, (ABLE,))


def test_a_machine_that_matches_its_file_has_no_problem() -> None:
    machine = Machine(name="lab1", cores=8, memory="16GiB", underlay="10.0.0.1", underlay_mtu=1500)
    assert list(contradictions(machine, REPORT)) == []
    assert list(contradictions(Machine(name="lab1"), REPORT)) == []


def test_a_user_who_cannot_create_namespaces_gets_the_reason() -> None:
    unable = replace(
        ABLE, available=False, detail="user namespaces are forbidden (kernel.unprivileged_userns_clone is 0)"
    )
    (sentence,) = contradictions(Machine(name="lab1"), replace(REPORT, capabilities=(unable,)))
    assert sentence == (
        "it cannot make network namespaces: user namespaces are forbidden (kernel.unprivileged_userns_clone is 0)"
    )


def test_a_report_survives_serialization() -> None:
    assert MachineReport.from_json(json.loads(json.dumps(asdict(REPORT)))) == REPORT
