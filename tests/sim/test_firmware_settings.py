"""Runs with firmware settings other than the defaults."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import testbed
from protocols.am2.plug import plug
from protocols.core.protocol import Configurable
from protocols.emp.settings import Settings
from testbed.cli.main import testbed as command
from testbed.controller.runs.runner import RunResult, configured, protocol_of
from testbed.errors import DescriptionError, UnsupportedError
from testbed.runtime.nodes.node_run import ProgramError
from testbed.spec.model import Description

FRAMES = 6
SIZE = FRAMES * 1472 - 64  # bytes of an MPI message that takes so many frames with MPI's header
COUNT = 8

EMP_ERRORS = [
    ({"unit": 0}, "found a collection of 0 frames, expected 1 to 255"),
    ({"unit": "two"}, "unit: found 'two', expected a whole number"),
    ({"unit": 2.5}, r"unit: found 2\.5, expected a whole number"),
    ({"timeout": 0}, "found a time-out of 0 ns, expected above 0, and at most 160000000 ns"),
    ({"timeout": "5ms"}, "timeout: found '5ms', expected a whole number"),
    ({"longest_timeout": 2**62 + 1}, f"found a longest time-out of {2**62 + 1} ns, expected at most {2**62} ns"),
    ({"give_up": -1}, r"found giving up after -1 ns, expected 0 \(never\) or more"),
    ({"window": 0}, "found a window of 0 collections, expected 1 or more"),
    ({"held": 0}, "found 0 held headers, expected 1 to 65536"),
    ({"descriptors": 0}, "found 0 descriptors, expected 1 to 65536"),
    ({"units": 2}, r"unknown setting 'units', expected one of the settings unit, .*did you mean 'unit'"),
]


def pingpong(firmware: dict[str, object], protocol: str = "emp", loss: float = 0.0, size: int = SIZE) -> RunResult:
    return testbed.run(
        Description.star(2, loss=loss), "pingpong", protocol=protocol, mode="sim", firmware=firmware, seed=1,
        settings={"sizes": size, "count": COUNT},
    )  # fmt: skip


def run_command(folder: Path, *arguments: str) -> Result:
    return CliRunner().invoke(
        command, ["run", "star-2", *arguments, "--mode", "sim", "--output", str(folder), "--json"]
    )


@pytest.mark.parametrize("unit", [1, 2, 3, 6, None])
def test_unit_sets_the_number_of_frames_per_acknowledgement(unit: int | None) -> None:
    counters = pingpong({} if unit is None else {"unit": unit}).counters["n2"]
    pings = (counters["data_stored"] - counters["messages_received"]) // (FRAMES - 1)  # all others are one frame
    assert pings > COUNT
    assert counters["acknowledgements_sent"] == counters["messages_received"] - pings + pings * FRAMES // (unit or 3)


def test_give_up_limits_the_retransmission_of_a_message() -> None:
    with pytest.raises(ProgramError, match="acknowledged nothing within the time limit"):
        pingpong({"give_up": 50_000_000}, loss=1.0)


def test_a_shorter_timeout_lowers_the_latency_under_loss() -> None:
    short_timeout, long_timeout = (
        pingpong({"timeout": timeout, "longest_timeout": timeout}, loss=0.2) for timeout in (1_000_000, 100_000_000)
    )
    assert short_timeout.counters["n1"]["collections_resent"]
    assert sum(row["p50_ns"] for row in short_timeout.rows) < sum(row["p50_ns"] for row in long_timeout.rows)


def test_descriptors_sets_the_number_of_descriptors() -> None:
    assert pingpong({"descriptors": 8}, size=20_000).rows
    with pytest.raises(ProgramError, match="the NIC has too few descriptors for it"):
        pingpong({"descriptors": 1}, size=20_000)


@pytest.mark.parametrize("name", ["window", "held"])
def test_emp_runs_with_the_minimum_of_a_setting(name: str) -> None:
    assert pingpong({name: "1"}).rows


@pytest.mark.parametrize(("firmware", "message"), EMP_ERRORS)
def test_invalid_settings_of_emp_are_description_errors(firmware: dict[str, object], message: str) -> None:
    with pytest.raises(DescriptionError, match=message):
        pingpong(firmware)


def test_all_settings_of_emp_can_be_given() -> None:
    defaults = Settings()
    firmware = {name: getattr(defaults, name) for name in defaults.__slots__}
    assert pingpong(firmware).rows == pingpong({}).rows


def test_an_invalid_setting_of_ssam_is_reported_with_the_values_that_are_allowed() -> None:
    expected = r"found long_window = 33, expected above window \(8\) and at most 32, or 0 \(none\)"
    with pytest.raises(DescriptionError, match=expected):
        pingpong({"window": 8, "long_window": 33}, "ssam")


def test_invalid_settings_of_am2_are_description_errors() -> None:
    with pytest.raises(DescriptionError, match=r"unknown setting 'frame'.*frames"):
        pingpong({"frame": 3}, "am2")
    with pytest.raises(DescriptionError, match="found frames = 0, expected 1 to 65536"):
        pingpong({"frames": 0}, "am2")
    with pytest.raises(DescriptionError, match="found keepalive = -1, expected 0 or more"):
        pingpong({"keepalive": -1}, "am2")
    with pytest.raises(DescriptionError, match="found handlers = 70000, expected 1 to 256"):
        pingpong({"handlers": 70000}, "am2")


@pytest.mark.parametrize(
    ("protocol", "firmware", "message"),
    [
        ("via", {"window": 0}, "found window = 0, expected 1 to 32768"),
        ("via", {"reliability": 3}, r"found reliability = 3, expected one of \[1, 2, 4\]"),
        ("openmx", {"tick": 1}, "found tick = 1, expected 1000 to"),
    ],
)
def test_invalid_settings_of_via_and_openmx_are_description_errors(
    protocol: str, firmware: dict[str, object], message: str
) -> None:
    with pytest.raises(DescriptionError, match=message):
        pingpong(firmware, protocol)


def test_an_invalid_setting_of_am2s_mapper_is_a_description_error() -> None:
    with pytest.raises(DescriptionError, match="found watch = 0, expected 1 or more"):
        pingpong({"watch": 0}, "am2")


@dataclass(frozen=True)
class ForeignSettings:
    """Settings whose errors do not have the form of the built-in protocols' errors."""

    depth: int = 1

    def __post_init__(self) -> None:
        raise ValueError(f"depth must be a power of two, got {self.depth}")


def test_a_settings_error_of_another_form_is_shown_whole() -> None:
    protocol = replace(protocol_of("am2", "sim"), configurable=Configurable(ForeignSettings, lambda _: plug()))
    with pytest.raises(DescriptionError) as caught:
        configured(protocol, "mine", {"depth": 3}, "generated", "inline")
    assert str(caught.value) == (
        "the settings of the firmware of mine: 1 problem\n  depth must be a power of two, got 3"
    )


def test_settings_of_a_kernel_protocol_are_rejected() -> None:
    with pytest.raises(UnsupportedError, match="the firmware of tcp has no settings"):
        testbed.run(Description.star(2), "pingpong", protocol="tcp", mode="live", firmware={"unit": 3})


@pytest.mark.parametrize("options", [{"mode": "live", "nics": "shared"}, {"mode": "sim", "codec": "scapy"}])
def test_firmware_settings_are_rejected_with_shared_nics_and_the_scapy_codec(options: dict[str, str]) -> None:
    with pytest.raises(UnsupportedError, match="fixed settings with --nics shared and --codec scapy"):
        testbed.run(Description.star(2), "pingpong", protocol="emp", firmware={"unit": 2}, **options)  # type: ignore[arg-type]


def test_firmware_settings_are_rejected_where_ranks_share_a_nic_in_namespaces() -> None:
    with pytest.raises(UnsupportedError, match="whose firmware has fixed settings then"):
        testbed.run(
            Description.star(2), "pingpong", protocol="emp", mode="live", ranks_per_node=2, firmware={"unit": 2}
        )


def test_option_firmware_sets_the_firmware_of_am2(tmp_path: Path) -> None:
    arguments = ["run", "star-2", "am-logp", "--protocol", "am2", "--mode", "sim", "--output", str(tmp_path / "run")]
    result = CliRunner().invoke(
        command, [*arguments, "--firmware", "reliable=no", "--firmware", "virtual=no", "--json"]
    )
    assert result.exit_code == 0, result.output
    counters = json.loads((tmp_path / "run" / "result.json").read_text())["counted"][0]["n1"]
    assert counters["packets_sent"] > 0
    assert not counters["acknowledgements_received"]
    rejected = CliRunner().invoke(command, ["run", "star-2", "--on", "n1", "true", "--firmware", "frames=2"])
    assert "--firmware needs a workload" in rejected.output


def test_option_firmware_is_recorded_and_rejected_if_invalid(tmp_path: Path) -> None:
    arguments = ["pingpong", "--set", "count=4", "--set", "sizes=8700"]
    result = run_command(
        tmp_path / "run", *arguments, "--firmware", "unit=2", "--firmware", "longest-timeout=200000000"
    )
    assert result.exit_code == 0, result.output
    assert json.loads((tmp_path / "run" / "run.json").read_text())["firmware"] == {
        "unit": "2", "longest_timeout": "200000000"
    }  # fmt: skip
    rejected = run_command(tmp_path / "wrong", *arguments, "--firmware", "unit=0")
    assert isinstance(rejected.exception, DescriptionError)
    assert "found a collection of 0 frames, expected 1 to 255" in str(rejected.exception)
    assert not (tmp_path / "wrong").exists()
