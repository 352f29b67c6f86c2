"""The conformance suite in the simulation: every shipped protocol passes, and each mutant of a package fails the check that
is meant to find it. TESTBED_LONG=1 runs every check with the command's default scope."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from protocols.core.protocol import Protocol
from testbed.controller.conformance import restart_checks
from testbed.controller.conformance.candidate import Candidate, candidate
from testbed.controller.conformance.case_checks import run_case, run_schedule
from testbed.controller.conformance.suite import CHECKS, Scope, State, check, find_check
from testbed.errors import NotFoundError, TestbedError, UnsupportedError
from testbed.fabric.interface import Receive
from testbed.registry import PROTOCOLS, load, offered
from testbed.sim.simulation import Simulation
from tests.sim.package_mutants import MUTANTS, PackageMutant
from tests.sim.written_packages import copy_template, on_path, write_template

LONG = bool(os.environ.get("TESTBED_LONG"))
SCOPE = Scope() if LONG else Scope(depth=2, cases=2)
MUTANT_SCOPE = Scope(depth=2, cases=20)
SIMULATED = [check.name for check in CHECKS if not check.needs_namespaces]
SHIPPED = [
    name for name in offered(PROTOCOLS) if isinstance(offer := load(PROTOCOLS, name), Protocol) and offer.ethertype
]


@pytest.fixture(scope="module")
def parcel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_template("parcel", tmp_path_factory.mktemp("written"))


@pytest.mark.timeout(3600 if LONG else 120)
@pytest.mark.parametrize("protocol", SHIPPED)
def test_a_shipped_protocol_passes_every_simulated_check(
    protocol: str, record_property: Callable[[str, object], None]
) -> None:
    results = [check(protocol, name, SCOPE) for name in SIMULATED]
    assert {result.check.name: result.reason for result in results if result.state is not State.PASSED} == {}
    record_property(
        "note", f"conformance: {protocol}: " + "; ".join(filter(None, (result.reason for result in results)))
    )


def test_the_tests_of_a_new_package_pass_and_include_the_suite(parcel: Path) -> None:
    """The tests run in the package's folder, without an installation, as its author runs them."""
    completed = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"], cwd=parcel, capture_output=True, text=True,
        check=False, env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert f"{12 + 1 + len(SIMULATED)} passed" in completed.stdout


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_a_mutant_of_a_package_fails_the_check_that_is_meant_to_find_it(
    mutant: PackageMutant, parcel: Path, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    name = f"muta{MUTANTS.index(mutant):02}"
    folder = copy_template(parcel, name, tmp_path)
    mutant.apply(folder / name)
    with on_path(folder):
        result = check(name, mutant.check, MUTANT_SCOPE)
    assert result.state is State.FAILED, f"the check does not find the fault: {mutant.fault}"
    record_property(
        "note", f"conformance: {mutant.check} finds the fault: {mutant.fault}: {result.reason.splitlines()[0]}"
    )


def test_a_failing_case_is_reduced_and_repeated_with_the_printed_option(parcel: Path, tmp_path: Path) -> None:
    (mutant,) = [mutant for mutant in MUTANTS if mutant.check == "fates"]
    folder = copy_template(parcel, "mutanf", tmp_path)
    mutant.apply(folder / "mutanf")
    with on_path(folder):
        reason = check("mutanf", "fates", MUTANT_SCOPE).reason
        case = reason.rpartition("--case ")[2]
        exchange, _, fates = case.partition(":")
        assert sum(fate != "p" for fate in fates) == 1, f"{case} is not reduced to one fault"
        repeated = check("mutanf", "fates", case=case)
        assert repeated.state is State.FAILED
        assert repeated.reason.splitlines()[0] == reason.splitlines()[0]
        assert "delivered twice" in repeated.reason or "dropped" in repeated.reason
        reason = check("mutanf", "swarm", MUTANT_SCOPE).reason
        assert "reduced to Case(" in reason
        seed = reason.rpartition("--case ")[2]
        assert check("mutanf", "swarm", case=seed).state is State.FAILED
    with on_path(parcel):
        assert check("parcel", "fates", case=case).state is State.PASSED
        assert exchange in case


def test_a_late_frame_arrives_after_frames_of_the_next_incarnation_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The frames that follow the late one are on the link at the restart, and are still of its incarnation."""
    received: list[bytes] = []
    starts: list[int] = []  # by trial, the index of the first frame of the next incarnation
    late_frames: list[tuple[int, int]] = []  # by trial, the number of frames before the late one, and its index

    class RecordedLateFrame(restart_checks._LateFrame):
        def __init__(self, receive: Receive, number: int, before: int) -> None:
            def record(now: int, frame: bytes) -> None:
                if self.has_restarted and not self.is_under_way and len(late_frames) < len(starts):
                    late_frames.append((before, len(received)))
                received.append(frame)
                receive(now, frame)

            super().__init__(record, number, before)

    def send_anew(candidate: Candidate, pair: Simulation, *rest: Any) -> None:
        ((_, direction),) = [item for item in pair.network.link_directions.items() if item[0][1] == "forward"]
        starts.append(len(received) + direction.in_flight)
        original_send_anew(candidate, pair, *rest)

    original_send_anew = restart_checks._send_anew
    monkeypatch.setattr(restart_checks, "_LateFrame", RecordedLateFrame)
    monkeypatch.setattr(restart_checks, "_send_anew", send_anew)
    for number in range(4):
        for before in (1, 3):
            restart_checks._restart_with_late_frame(candidate("emp"), 5_000, number, before)
    assert len(starts) == 8
    assert [index for _, index in late_frames] == [
        start + before for start, (before, _) in zip(starts, late_frames, strict=True)
    ]


def test_an_inapplicable_check_returns_the_reason() -> None:
    result = check("ssam", "killed-host")
    assert (result.state, result.reason) == (
        State.NOT_APPLICABLE, "the protocol's NICs cannot be shared: it has no split driver",
    )  # fmt: skip


def test_an_exception_in_a_host_librarys_constructor_is_reported(parcel: Path, tmp_path: Path) -> None:
    folder = copy_template(parcel, "mutann", tmp_path)
    PackageMutant("", "", "host.py", "self.rank: Final = adapter.number", "self.rank = adapter.place").apply(
        folder / "mutann"
    )
    with on_path(folder), pytest.raises(TestbedError, match=r"NICs of protocol mutann(.|\n)*AttributeError"):
        check("mutann", "mtu")


def test_unknown_names_are_rejected_with_a_hint() -> None:
    with pytest.raises(NotFoundError, match="did you mean 'wildcards'"):
        find_check("wildcard")
    with pytest.raises(UnsupportedError, match="kernel protocol"):
        candidate("tcp")
    with pytest.raises(UnsupportedError, match="no cases"):
        check("emp", "cancel", case="1")
    with pytest.raises(NotFoundError, match="d dropped"):
        run_schedule(candidate("emp"), "1+1:x")
    with pytest.raises(NotFoundError, match="a seed"):
        run_case(candidate("emp"), "first")


def command(*arguments: str, path: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(path)}
    return subprocess.run(
        [str(Path(sys.executable).with_name("testbed")), "protocol", *arguments], capture_output=True, text=True,
        check=False, env=environment,
    )  # fmt: skip


def test_the_command_prints_each_check_and_exits_with_10_if_one_fails(parcel: Path, tmp_path: Path) -> None:
    (mutant,) = [mutant for mutant in MUTANTS if mutant.check == "mtu"]
    folder = copy_template(parcel, "mutanm", tmp_path)
    mutant.apply(folder / "mutanm")
    failed = command("check", "mutanm", "--only", "mtu", "--only", "cancel", path=folder)
    assert failed.returncode == 10
    assert [line.split()[:2] for line in failed.stdout.splitlines() if not line.startswith(" ")] == [
        ["failed", "mtu"], ["passed", "cancel"],
    ]  # fmt: skip
    assert "MTU" in failed.stdout
    result = command("check", "parcel", "--only", "mtu", "--json", path=parcel)
    assert result.returncode == 0
    document = json.loads(result.stdout)
    assert (document["kind"], document["protocol"], document["passed"]) == ("protocol-check", "parcel", True)
    assert [(check["name"], check["state"]) for check in document["checks"]] == [("mtu", "passed")]


def test_protocol_list_shows_settings_and_profiles(parcel: Path) -> None:
    (own_row,) = [
        protocol
        for protocol in json.loads(command("list", "--json", path=parcel).stdout)["protocols"]
        if protocol["name"] == "parcel"
    ]
    assert own_row["settings"] == {"resend": 5_000_000}
    assert (own_row["package"], own_row["version"], own_row["nics"], own_row["profiles"]) == (
        "parcel",
        "0.1",
        ["inline", "shared"],
        [],
    )
    assert "parcel: resend=5000000" in command("list", path=parcel).stdout


def test_an_exception_in_the_host_library_fails_the_check_with_its_source_file(parcel: Path, tmp_path: Path) -> None:
    folder = copy_template(parcel, "mutanr", tmp_path)
    PackageMutant("", "", "host.py", "self._free.popleft()", 'self._free.pop({}["next"])').apply(folder / "mutanr")
    with on_path(folder):
        for name in ("cancel", "fates", "swarm", "restarts"):
            result = check("mutanr", name, MUTANT_SCOPE)
            assert result.state is State.FAILED
            assert "KeyError" in result.reason
            assert "host.py" in result.reason
