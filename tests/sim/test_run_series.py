"""`testbed run` with several protocols and modes: one table, one report, and a verdict for each run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner, Result

from testbed.cli.documents import schema_of
from testbed.cli.main import testbed as command
from testbed.errors import NotFoundError, UnsupportedError

WORKLOAD = "pingpong"
SMALL = ("--set", "count=3", "--set", "sizes=4")


def run(folder: Path, *arguments: str, workload: str = WORKLOAD) -> Result:
    return CliRunner().invoke(command, ["run", "star-2", workload, "--output", str(folder), *arguments])


def test_runs_of_several_protocols_share_a_table_and_a_report(tmp_path: Path) -> None:
    completed = run(tmp_path / "run", "--protocol", "emp,openmx,tcp", "--mode", "sim", *SMALL)
    assert completed.exit_code == 0, completed.output
    lines = [line.split() for line in completed.stdout.splitlines()]
    assert lines[0][:3] == ["protocol", "mode", "node"]
    assert [line[:3] for line in lines[1:3]] == [["emp", "sim", "n1"], ["openmx", "sim", "n1"]]
    assert lines[3] == ["protocol", "mode", "verdict"]
    assert lines[4:6] == [["emp", "sim", "trusted"], ["openmx", "sim", "trusted"]]
    assert " ".join(lines[6]).startswith("tcp sim not run: tcp is a kernel protocol")
    page = (tmp_path / "run" / "report.html").read_text()
    assert re.search(r"<h3>openmx against emp</h3>", page)
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["emp-sim", "openmx-sim", "report.html"]


def test_json_output_has_each_run_or_the_reason_why_it_was_not_made(tmp_path: Path) -> None:
    completed = run(tmp_path / "run", "--protocol", "emp,tcp", "--mode", "sim", "--json", *SMALL)
    document = json.loads(completed.stdout)
    jsonschema.validate(document, schema_of("run-series"))
    first, second = document["runs"]
    assert (first["protocol"], first["mode"], first["verdict"]) == ("emp", "sim", "trusted")
    assert first["run"]["rows"][0]["count"] == 3
    assert second["run"] is None
    assert second["verdict"].startswith("not run: ")


def test_a_failed_run_of_a_series_is_listed_and_sets_the_exit_code(tmp_path: Path) -> None:
    program = tmp_path / "fail_once.py"
    program.write_text(
        "from pathlib import Path\n"
        "async def fail_once(comm, node):\n"
        f"    seen = Path({str(tmp_path / 'seen')!r})\n"
        "    if comm.rank == 0 and not seen.exists():\n"
        "        seen.touch()\n"
        "        raise ValueError('not the first one')\n"
        "    node.row(ranks=comm.size)\n"
    )
    completed = run(tmp_path / "run", "--protocol", "via,emp", "--mode", "sim", workload=f"{program}:fail_once")
    assert completed.exit_code == 1, completed.output
    assert re.search(r"via +sim +failed\nemp +sim +trusted\n", completed.stdout)
    assert re.search(r"via, sim: n1: Traceback(.|\n)*ValueError: not the first one", completed.stderr)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [(("--protocol", "tcp,udp", "--mode", "sim"), UnsupportedError), (("--protocol", "emp,tpc"), NotFoundError)],
)
def test_a_rejected_series_leaves_no_folder(
    arguments: tuple[str, ...], error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    completed = CliRunner().invoke(command, ["run", "star-2", WORKLOAD, *arguments])
    assert isinstance(completed.exception, error)
    assert not list((tmp_path / "results" / "runs").iterdir())


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("pingpong", "--mode", "sim,real"), "'real' is not one of sim, live, dilated"),
        (("pingpong", "--protocol", "emp,,tcp"), "empty name"),
        (("--on", "n1", "true", "--mode", "live,sim"), "commands run once"),
    ],
)
def test_invalid_lists_of_names_are_rejected(arguments: tuple[str, ...], reason: str) -> None:
    completed = CliRunner().invoke(command, ["run", "star-2", *arguments])
    assert completed.exit_code == 2
    assert reason in completed.output


@pytest.mark.parametrize(
    "option",
    [
        ("--set", "count=1"), ("--protocol", "via"), ("--codec", "scapy"), ("--nics", "shared"), ("--repeat", "2"),
        ("--patience", "1"), ("--history",), ("--check",), ("--capture",), ("--fates",),
    ],
)  # fmt: skip
def test_options_without_effect_on_commands_are_rejected(option: tuple[str, ...]) -> None:
    # In mode sim, commands are rejected later: this test changes nothing on the machine.
    completed = CliRunner().invoke(command, ["run", "star-2", "--on", "n1", "true", "--mode", "sim", *option])
    assert completed.exit_code == 2
    assert f"{option[0]} needs a workload: it has no effect on commands" in completed.output
