"""Command `reproduce`: several papers, parallel points, continuation, the HTML page, kept rows and exit codes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import jsonschema
import pytest
from click.testing import CliRunner, Result

from testbed.cli.documents import schema_of
from testbed.cli.main import testbed as command
from testbed.controller.engines import SerialEngine
from testbed.controller.papers.reproduction import reproduce_all
from testbed.errors import TestbedError
from testbed.observe.kept_rows import kept_rows
from testbed.observe.paper_files import paper_of, systems
from testbed.observe.papers import restrict

LONG = bool(os.environ.get("TESTBED_LONG"))
RUNS = ("--run", "raw", "--run", "tcp")


@pytest.fixture(autouse=True)
def _in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def reproduce(*arguments: str) -> Result:
    return CliRunner().invoke(command, ["reproduce", *arguments])


def document(*arguments: str) -> dict[str, object]:
    reproduction = reproduce(*arguments, "--json")
    assert reproduction.exit_code == 0, reproduction.output
    printed_document: dict[str, object] = json.loads(reproduction.stdout)
    jsonschema.validate(printed_document, dict(schema_of("reproduce")))
    return printed_document


def modification_times(folder: str) -> dict[str, int]:
    return {file.stem: file.stat().st_mtime_ns for file in (Path(folder) / "via").iterdir()}


def test_parallel_and_serial_runs_have_equal_rows() -> None:
    by_one_process = document("via", *RUNS, "--jobs", "1")
    by_two_processes = document("via", *RUNS, "--jobs", "2", "--output", "papers")
    assert by_one_process["rows"] == by_two_processes["rows"]
    assert len(list(Path("results/reproductions").iterdir())) == 1
    assert set(modification_times("papers")) == {"raw", "tcp"}


def test_points_are_computed_by_the_given_engine() -> None:
    class RecordingEngine(SerialEngine):
        """Engine that records the points that it computes."""

        def __init__(self) -> None:
            self.points: list[str] = []

        @contextmanager
        def open(self) -> Iterator[Executor]:
            with super().open() as executor, patch.object(executor, "submit", wraps=executor.submit) as submit:
                yield executor
            self.points = [str(call.args[1]) for call in submit.call_args_list]

    engine = RecordingEngine()
    (result,) = reproduce_all(["via"], runs=["raw", "tcp"], engine=engine)
    assert engine.points == ["via, run raw", "via, run tcp"]
    assert len(result.rows) == 33


def test_a_continued_reproduction_computes_only_missing_points() -> None:
    first = document("via", *RUNS, "--jobs", "1", "--output", "papers")
    before = modification_times("papers")
    (Path("papers") / "via" / "raw.json").unlink()
    second = document("--continue", "papers", "--jobs", "1")
    assert second["rows"] == first["rows"]
    after = modification_times("papers")
    assert after["tcp"] == before["tcp"]
    assert after["raw"] > before["raw"]


def test_a_continued_reproduction_repeats_points_of_another_request() -> None:
    document("via", *RUNS, "--jobs", "1", "--output", "papers")
    file = Path("papers/via/raw.json")
    point = json.loads(file.read_text())
    point["asked"]["run"]["settings"] = {"count": 1}
    point["rows"] = []
    file.write_text(json.dumps(point))
    document("--continue", "papers", "--jobs", "1")
    assert json.loads(file.read_text())["rows"]


def test_a_continued_reproduction_does_not_need_the_profiles_file() -> None:
    Path("slow.toml").write_text('like = "emp-2001"\nreceive = "11us"\n')
    arguments = ("emp", "--run", "latency", "--profile", "slow.toml", "--output", "papers")
    assert reproduce(*arguments).exit_code == 10
    Path("slow.toml").unlink()
    reproduction = reproduce("--continue", "papers")
    assert reproduction.exit_code == 10
    assert "profile slow" in reproduction.output


def test_rows_are_printed_with_source_name_and_value() -> None:
    reproduction = reproduce("emp", "--run", "calls")
    assert reproduction.exit_code == 0
    lines = [" ".join(line.split()) for line in reproduction.output.splitlines()]
    assert any(line.startswith("emp table 2 Table 2, MPI_Waitall 3 us ") for line in lines)
    assert "emp table 2 Table 2, MPI_Waitall: GM 123 us the paper's" in lines
    assert "points are in results/reproductions/" in reproduction.output


def test_the_report_is_written_from_existing_points() -> None:
    assert reproduce("via", *RUNS, "--jobs", "1", "--output", "papers").exit_code == 0
    before = modification_times("papers")
    assert reproduce("--continue", "papers", "--report", "pages/papers.html").exit_code == 0
    assert modification_times("papers") == before
    assert '<section id="via"' in Path("pages/papers.html").read_text()


@pytest.mark.parametrize(
    ("damage", "sentence", "code"),
    [
        ({"format": "1"}, "format: found '1', expected a whole number", 1),
        ({"format": 2}, "has format 2, written by a newer testbed", 3),
        ({"systems": "via"}, "systems: found 'via', expected a list", 1),
        ({"systems": [["via"]]}, "systems[0]: found ['via'], expected text", 1),
        ({"systems": []}, "it has no system", 1),
        ({"systems": ["vla"]}, "no protocol is called 'vla'", 4),
        ({"mode": "live"}, "mode: found 'live', expected 'sim' or 'dilated'", 1),
        ({"mode": {"sim": {}}}, "expected 'sim' or 'dilated'", 1),
        ({"dilate": "5"}, "dilate: found '5', expected a whole number", 1),
        ({"dilate": 5}, "dilate 5 in mode sim", 1),
        ({"mode": "dilated", "dilate": 0}, "dilate 0 in mode dilated", 1),
        ({"profile": 5}, "profile: found 5, expected an object", 1),
        ({"profile": {"work": {"copy": []}}}, "work.copy: found [], expected a table", 2),
        ({"runs": None}, "runs: found None, expected a list", 1),
        ({"runs": [{"raw": 1}]}, "runs[0]: found {'raw': 1}, expected text", 1),
        ({"runs": ["rav"]}, "did you mean 'raw'", 4),
        ("[" * 100_000, "nested too deeply", 1),
    ],
)
def test_damaged_requests_are_reported(damage: dict[str, object] | str, sentence: str, code: int) -> None:
    request = {"format": 1, "systems": ["via"], "runs": ["raw"], "mode": "sim", "dilate": None, "profile": ""}
    Path("papers").mkdir()
    file = Path("papers/reproduction.json")
    file.write_text(damage if isinstance(damage, str) else json.dumps({**request, **damage}))
    reproduction = reproduce("--continue", "papers")
    assert isinstance(reproduction.exception, TestbedError)
    assert reproduction.exception.exit_code == code
    assert sentence in str(reproduction.exception)
    assert list(Path("papers").iterdir()) == [file]


def test_a_prediction_with_a_larger_error_than_the_kept_row_exits_with_10(monkeypatch: pytest.MonkeyPatch) -> None:
    kept_before = kept_rows("emp")
    assert kept_before is not None
    kept_better = replace(kept_before, rows=[replace(row, ours=row.paper) for row in kept_before.rows])
    monkeypatch.setattr("testbed.controller.papers.reproduction.kept_rows", lambda _: kept_better)
    reproduction = reproduce("emp", "--run", "latency")
    assert reproduction.exit_code == 10
    (row,) = [row for row in kept_before.rows if row.name == "latency, 1500 B"]
    message = f"{row.name}: {row.ours:.4g} {row.unit}, not {row.paper:g}: {row.error:+.1%}"
    assert f"not reproduced: {message}, the kept error is +0.0%" in reproduction.output


def test_option_keep_writes_the_measured_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept_before = kept_rows("emp")
    assert kept_before is not None
    (tmp_path / "package").mkdir()
    monkeypatch.setattr("testbed.observe.kept_rows.folder_of", lambda _: tmp_path / "package")
    assert kept_rows("emp") is None
    restricted = restrict(paper_of("emp"), ["latency"])
    monkeypatch.setattr("testbed.controller.papers.reproduction.paper_of", lambda _: restricted)
    assert reproduce("emp", "--jobs", "1", "--keep").exit_code == 0
    kept_after = kept_rows("emp")
    assert kept_after is not None
    assert kept_after.rows == [row for row in kept_before.rows if row.name in ("latency, 4 B", "latency, 1500 B")]


def test_damaged_kept_rows_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("testbed.observe.kept_rows.folder_of", lambda _: tmp_path)
    (tmp_path / "reproduced.json").write_text('{"rows": [{"name": "latency"}], "shapes": []}')
    with pytest.raises(TestbedError, match="'testbed reproduce emp --keep' rewrites it"):
        kept_rows("emp")


@pytest.mark.parametrize(
    ("arguments", "sentence", "code"),
    [
        (("emp", "ssam", "--run", "latency"), "a profile or runs need one system, got emp, ssam", 3),
        (("--profile", "emp-2001"), "a profile or runs need one system, got am2, emp", 3),
        (("tcp",), "tcp has no paper to compare with", 4),
        (("emq",), "did you mean 'emp'", 4),
        (("emp", "--run", "latencies"), "did you mean 'latency'", 4),
        (("--continue", "nowhere"), "is not the folder of a reproduction", 4),
        (("emp", "--continue", "nowhere"), "--continue uses the systems and options of its folder", 2),
        (("--continue", "nowhere", "--mode", "sim"), "--continue uses the systems and options", 2),
        (("--continue", "nowhere", "--output", "papers"), "--continue uses the systems and options", 2),
        (("emp", "--run", "latency", "--keep"), "--keep needs complete papers", 2),
        (("emp", "--mode", "dilated", "--jobs", "2"), "--jobs needs the simulation", 2),
        (("emp", "--dilate", "5"), "--dilate needs --mode dilated", 2),
        (("emp", "--output", "."), "exists and is not empty", 5),
        (
            ("emp", "--report", "/proc/nowhere/papers.html"),
            "cannot be written to /proc/nowhere/papers.html: No such",
            1,
        ),
        (("emp", "--report", "a file/papers.html"), "the report cannot be written to a file/papers.html: ", 1),
        (("emp", "--report", "."), "the report cannot be written to .: Is a directory", 1),
        (("emq", "--report", "pages/of/papers.html"), "did you mean 'emp'", 4),
    ],
)
def test_invalid_arguments_are_errors_and_leave_no_folder(arguments: Sequence[str], sentence: str, code: int) -> None:
    Path("a file").write_text("")
    reproduction = reproduce(*arguments)
    assert (getattr(reproduction.exception, "exit_code", None) or reproduction.exit_code) == code
    assert sentence in f"{reproduction.output}{reproduction.exception}"
    assert [file.name for file in Path().iterdir()] == ["a file"]


@pytest.mark.timeout(1800 if LONG else 120)
def test_papers_reproduced_in_other_processes_equal_the_kept_rows() -> None:
    """The long mode reproduces all papers."""
    names = systems() if LONG else ["emp", "via"]
    completed = subprocess.run(
        [Path(sys.executable).with_name("testbed"), "reproduce", *([] if LONG else names), "--json", "--report", "all.html"],
        env={**os.environ, "PYTHONHASHSEED": "7"}, capture_output=True, text=True, check=False,
        timeout=1700 if LONG else 110,
    )  # fmt: skip
    assert completed.returncode == 0, completed.stdout[-3000:] + completed.stderr
    document = json.loads(completed.stdout)
    jsonschema.validate(document, dict(schema_of("reproduce")))
    assert {system["system"]: system["failures"] for system in document["systems"]} == {name: [] for name in names}
    measured = [
        (row["system"], row["name"], round(row["ours"], 6)) for row in document["rows"] if row["kind"] != "paper"
    ]
    kept = [(name, kept_rows(name)) for name in names]
    assert measured == [(name, row.name, row.ours) for name, rows in kept if rows is not None for row in rows.rows]
    assert re.findall(r'<section id="(\w+)"', Path("all.html").read_text()) == ["summary", *names]
