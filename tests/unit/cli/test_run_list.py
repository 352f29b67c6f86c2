"""List of runs in the web view: progress, result and report of each."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from testbed.cli.web.run_list import ReportPages, RunList
from testbed.errors import TestbedError
from testbed.kernel.processes import identity
from tests.report.synthetic_runs import ping_pong_rows, verdict, write_run


def refreshed_document(runs: RunList) -> list[dict[str, Any]]:
    document: list[dict[str, Any]] = json.loads(json.dumps(runs.refresh()))
    return document


def identity_of_ended_process() -> str:
    """Return the identity of a process that has ended."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        return str(identity(process.pid))


def test_a_run_in_progress_shows_its_repetition_its_rows_and_then_its_result(tmp_path: Path) -> None:
    begins = [{"time": 1, "event": "repetition begins", "number": number} for number in (1, 2, 3)]
    folder = write_run(tmp_path / "a", ping_pong_rows(), events=begins, result={}, repeat=4, process=str(identity()))
    runs = RunList(tmp_path)
    (run,) = refreshed_document(runs)
    assert (run["description"], run["status"], run["grade"]) == ("star-4 pingpong emp live", "running", "")
    assert run["progress"].startswith("repetition 3 of 4, 4 rows, ")
    assert run["fraction_done"] == 0.5
    with (folder / "rows.jsonl").open("a") as file:
        file.write('{"node": "n1"}\n{"incomplete')
    assert ", 5 rows, " in refreshed_document(runs)[0]["progress"]
    (folder / "result.json").write_text(json.dumps({"format": 1, "status": "done", "verdict": verdict("degraded")}))
    (run,) = refreshed_document(runs)
    assert (run["status"], run["grade"], run["progress"]) == ("done", "degraded", "")
    runs.close()


def test_the_runs_of_a_series_are_listed_separately_with_separate_reports(tmp_path: Path) -> None:
    for series in ("first", "second"):
        for member in ("emp-sim", "tcp-live"):
            write_run(tmp_path / "runs" / series / member, ping_pong_rows(), protocol=member)
    runs = RunList(tmp_path / "runs")
    shown = {run["name"]: run["description"] for run in refreshed_document(runs)}
    assert sorted(shown) == ["first/emp-sim", "first/tcp-live", "second/emp-sim", "second/tcp-live"]
    assert shown["second/tcp-live"] == "star-4 pingpong tcp-live live"
    folder = runs.folder("second/emp-sim")
    assert folder == tmp_path / "runs" / "second" / "emp-sim"
    reports = ReportPages(tmp_path)
    pages = [asyncio.run(reports.page(tmp_path / "runs" / series / "emp-sim")) for series in ("first", "second")]
    assert pages[0] != pages[1]
    runs.close()


def test_a_single_repetition_has_no_fraction_done(tmp_path: Path) -> None:
    write_run(tmp_path / "a", result={}, process=str(identity()))
    runs = RunList(tmp_path)
    (run,) = refreshed_document(runs)
    assert (run["status"], run["fraction_done"]) == ("running", None)
    assert run["progress"].startswith("0 rows, ")
    runs.close()


@pytest.mark.parametrize(
    ("process", "status"),
    [(identity_of_ended_process, "killed"), (lambda: "x:1:2:3", "unfinished"), (lambda: "", "unfinished")],
)
def test_a_run_without_a_result_whose_process_has_ended_was_killed(tmp_path: Path, process: Any, status: str) -> None:
    write_run(tmp_path / "a", result={}, process=process())
    assert [run["status"] for run in refreshed_document(RunList(tmp_path))] == [status]


def test_a_failed_run_shows_its_error(tmp_path: Path) -> None:
    write_run(tmp_path / "a", result={"status": "failed", "error": "n2 <b>is gone</b>\x1b[2J"})
    (run,) = refreshed_document(RunList(tmp_path))
    assert (run["status"], run["error"]) == ("failed", "n2 <b>is gone</b>\\x1b[2J")


def test_runs_appear_the_latest_first_and_disappear_with_their_folders(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    runs = RunList(folder)
    assert refreshed_document(runs) == []
    write_run(folder / "b", began=2.0)
    write_run(folder / "a", began=3.0)
    (folder / "not a run").mkdir()
    (folder / "file").write_text("")
    assert [run["name"] for run in refreshed_document(runs)] == ["a", "b"]
    shutil.rmtree(folder / "a")
    assert [run["name"] for run in refreshed_document(runs)] == ["b"]
    assert runs.folder("a") is None
    assert runs.folder("b") == folder / "b"
    assert runs.folder("..") is None
    runs.close()


def test_only_the_latest_of_many_runs_are_shown(tmp_path: Path) -> None:
    for number in range(33):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "run.json").write_text(json.dumps({"format": 1, "began": float(number)}))
        os.utime(folder, (number, number))
    runs = RunList(tmp_path)
    assert [run["name"] for run in refreshed_document(runs)] == [str(number) for number in range(32, 2, -1)]
    assert runs.folder("0") is None


@pytest.mark.parametrize("parent", ["", "series"])
def test_newer_folders_that_are_not_runs_hide_no_run(tmp_path: Path, parent: str) -> None:
    directory = tmp_path / parent
    write_run(directory / "old")
    os.utime(directory / "old", (1, 1))
    for number in range(31):
        (directory / f"other {number}").mkdir()
    runs = RunList(tmp_path)
    assert [run["name"] for run in refreshed_document(runs)] == [f"{parent}/old" if parent else "old"]


def test_old_runs_of_a_series_do_not_hide_newer_runs_in_folders_of_their_own(tmp_path: Path) -> None:
    for number in range(30):
        write_run(tmp_path / "series" / str(number), began=float(number))
        os.utime(tmp_path / "series" / str(number), (number, number))
    for name in ("newer", "newest"):
        write_run(tmp_path / name, began=100.0)
        os.utime(tmp_path / name, (100, 100))
    names = {run["name"] for run in refreshed_document(RunList(tmp_path))}
    assert names == {"newer", "newest", *(f"series/{number}" for number in range(2, 30))}


def test_a_damaged_run_does_not_hide_others(tmp_path: Path) -> None:
    write_run(tmp_path / "a")
    write_run(tmp_path / "b")
    (tmp_path / "b" / "run.json").write_text("{")
    runs = RunList(tmp_path)
    for _ in range(2):
        assert [run["name"] for run in refreshed_document(runs)] == ["a"]


def test_an_event_with_an_invalid_number_is_no_repetition(tmp_path: Path) -> None:
    events = [{"event": "repetition begins", "number": number} for number in ("2", None, [1], 1)]
    write_run(tmp_path / "a", events=events, result={}, repeat=2, process=str(identity()))
    runs = RunList(tmp_path)
    assert refreshed_document(runs)[0]["progress"].startswith("repetition 1 of 2")
    runs.close()


def test_a_report_is_rendered_again_only_after_a_change_of_the_run(tmp_path: Path) -> None:
    (tmp_path / "pages").mkdir()
    folder = write_run(tmp_path / "-run", ping_pong_rows())  # named like an option

    async def modification_times() -> list[int]:
        pages = ReportPages(tmp_path / "pages")
        times = []
        for change in (False, False, True):
            if change:
                (folder / "result.json").write_text((folder / "result.json").read_text())
            page = await pages.page(folder)
            assert "<html" in page.read_text()
            times.append(page.stat().st_mtime_ns)
        return times

    first, second, third = asyncio.run(modification_times())
    assert first == second < third


def test_a_run_without_a_report_shows_the_reason(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with pytest.raises(TestbedError, match="is not a run's folder"):
        asyncio.run(ReportPages(tmp_path).page(tmp_path / "run"))
