"""testbed report: a page for any run folder, and an error for other folders."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner, Result

from testbed.cli.main import testbed as command
from tests.report.synthetic_runs import SECOND, fault_events, message_rows, ping_pong_rows, verdict, write_run

VOID_ELEMENTS = {"meta", "link", "br", "img", "input", "path", "rect", "use"}


def run_report(*arguments: str | Path) -> Result:
    return CliRunner().invoke(command, ["report", *map(str, arguments)])


def page(tmp_path: Path, *runs: Path) -> str:
    result = run_report(*runs, "-o", tmp_path / "report.html")
    assert result.exit_code == 0, result.output
    return (tmp_path / "report.html").read_text()


class Outline(HTMLParser):
    """Checks that tags are balanced, and collects identifiers and references."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.names: list[str] = []
        self.references: list[str] = []
        self.headings: list[int] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.names += [attributes["id"]] if attributes.get("id") else []
        for key in ("aria-labelledby", "aria-describedby"):
            self.references += (attributes.get(key) or "").split()
        if (attributes.get("href") or "").startswith("#"):
            self.references.append(str(attributes["href"])[1:])
        if tag in ("h1", "h2", "h3", "h4"):
            self.headings.append(int(tag[1]))
        if tag not in VOID_ELEMENTS:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID_ELEMENTS:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID_ELEMENTS:
            assert self.open.pop() == tag


def rich_run(path: Path, **requested: object) -> Path:
    zero = 5 * SECOND
    events = [{"event": "repetition begins"}, *fault_events("loss 10% on n1", SECOND // 5, SECOND // 2, zero)]
    finding = {"what": "delay p50", "link": "n1:eth0--s1:1", "direction": "forward", "asked": 1e6, "measured": 3e6,
               "unit": "ns", "grade": "degraded", "reason": "2 ms too <late>", "interval": None}  # fmt: skip
    result = {"status": "done", "verdict": verdict("degraded", findings=[finding], notes=["the machine was busy"]),
              "counted": [{"n1": {"frames_sent": 7, "corrupt": 0}}]}  # fmt: skip
    run = write_run(path, [*ping_pong_rows(), *message_rows(zero)], events=events, result=result, **requested)
    lost = {"link": "n1:eth0--s1:1", "direction": "forward", "cause": "loss"}
    (run / "fates.jsonl").write_text((json.dumps(lost) + "\n") * 12)
    return run


def test_a_page_is_complete_and_its_references_exist(tmp_path: Path) -> None:
    outline = Outline(
        page(
            tmp_path,
            rich_run(tmp_path / "a"),
            rich_run(tmp_path / "b", protocol="tcp"),
            write_run(tmp_path / "c", ping_pong_rows()),
        )
    )
    assert len(outline.names) == len(set(outline.names))
    assert set(outline.references) <= set(outline.names)
    assert outline.headings[0] == 1
    assert all(after - before <= 1 for before, after in zip(outline.headings, outline.headings[1:], strict=False))


def test_the_verdict_and_its_reasons_come_first(tmp_path: Path) -> None:
    html = page(tmp_path, rich_run(tmp_path / "run"))
    verdict_at, figures_at = html.index('id="verdict"'), html.index('id="figures"')
    reason = html.index("delay p50 on n1:eth0--s1:1 forward: 3e+06 ns (2 ms too &lt;late&gt;): degraded")
    assert verdict_at < reason < figures_at
    assert "The machine was busy" in html
    assert "Fates of frames (12)" in html
    assert "corrupt" not in html  # none was counted


def test_the_page_fetches_nothing_from_the_network(tmp_path: Path) -> None:
    html = page(tmp_path, rich_run(tmp_path / "run"))
    for word in ("http://", "https://", "<script", "@import", "url(h"):
        assert word not in html.replace("http://www.w3.org/2000/svg", "")


def test_markup_in_names_is_escaped(tmp_path: Path) -> None:
    html = page(
        tmp_path,
        write_run(tmp_path / "run", [{"node": "<b>", "note": "<script>"}], workload="<i>", settings={"a": "<u>"}),
    )
    for tag in ("<b>", "<script>", "<i>", "<u>"):
        assert tag not in html


def test_a_slow_machine_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = rich_run(tmp_path / "a"), rich_run(tmp_path / "b", protocol="tcp")
    usual = page(tmp_path, *runs)
    clock = count(step=2)  # Matplotlib finds that placing a legend took two seconds
    monkeypatch.setattr("matplotlib.legend.time", SimpleNamespace(perf_counter=lambda: next(clock)))
    assert page(tmp_path, *runs) == usual
    assert next(clock) > 0  # a legend was placed


def test_equal_runs_have_equal_pages(tmp_path: Path) -> None:
    run = rich_run(tmp_path / "run")
    assert page(tmp_path, run) == page(tmp_path, run)


def test_a_run_that_never_ended_is_reported_up_to_its_last_event(tmp_path: Path) -> None:
    html = page(tmp_path, write_run(tmp_path / "run", ping_pong_rows(), result={}))
    assert "unfinished" in html
    assert "without result.json there is no verdict" in html
    assert "Latency against message size" in html


def test_a_run_without_rows_is_labelled(tmp_path: Path) -> None:
    html = page(tmp_path, write_run(tmp_path / "run"))
    assert "There are no rows" in html
    assert 'id="plots"' not in html


def test_an_invalid_run_shows_no_figure_by_default(tmp_path: Path) -> None:
    html = page(
        tmp_path,
        write_run(tmp_path / "run", ping_pong_rows(), result={"status": "done", "verdict": verdict("invalid")}),
    )
    assert 'id="plots"' not in html
    assert 'class="headline"' not in html
    assert "<summary>Rows of an invalid run, for diagnosis</summary>" in html


def test_an_aborted_run_shows_the_reason_and_the_output(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", result={"status": "failed", "error": "n1 ended with code 3"})
    (run / "logs").mkdir()
    (run / "logs" / "n1.log").write_text("Traceback & more")
    html = page(tmp_path, run)
    assert "n1 ended with code 3" in html
    assert "Traceback &amp; more" in html


def test_comparable_runs_are_compared(tmp_path: Path) -> None:
    first, slower = (
        write_run(tmp_path / "a", ping_pong_rows(), mode="sim"),
        write_run(tmp_path / "b", ping_pong_rows(1.2), mode="sim", protocol="tcp"),
    )
    html = page(tmp_path, first, slower, write_run(tmp_path / "c", ping_pong_rows(), workload="sort"))
    assert "24 worse" in html
    assert "Not comparable" in html
    assert "Differing settings" in html


def test_fourteen_runs_on_a_page_have_distinct_labels(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / f"r{number}", ping_pong_rows(1 + number / 10), seed=number) for number in range(14)]
    html = page(tmp_path, *runs)
    Outline(html)
    labels = re.findall(r'<span class="(label series-[^"]*)">([A-N])<', html)
    assert len({appearance for appearance, _ in labels}) == len({name for _, name in labels}) == 14


@pytest.mark.parametrize("file", ["cluster.json", "events.jsonl", "rows.jsonl", "result.json"])
def test_a_missing_file_is_mentioned_on_the_page(tmp_path: Path, file: str) -> None:
    run = rich_run(tmp_path / "run")
    (run / file).unlink()
    assert f"{file.partition('.')[0]}" in page(tmp_path, run)


def test_missing_runs_and_unwritable_reports_are_errors_of_one_line(tmp_path: Path) -> None:
    result = run_report(tmp_path / "nowhere")
    assert_error(result, 4, "is not a run's folder")
    run = write_run(tmp_path / "run", ping_pong_rows())
    (tmp_path / "file").write_text("")
    assert_error(run_report(run, "-o", tmp_path / "file" / "report.html"), 1, "cannot be written to")
    assert_error(run_report(run, "-o", tmp_path), 1, "Is a directory")
    (run / "run.json").write_text('{"format": 99}')
    assert_error(run_report(run), 3, "newer version of testbed")
    (run / "run.json").write_text("{")
    assert_error(run_report(run), 1, "damaged")
    assert run_report(*[write_run(tmp_path / f"r{number}") for number in range(17)]).exit_code == 2
    assert not (tmp_path / "report.html").exists()


def assert_error(result: Result, code: int, sentence: str) -> None:
    from testbed.errors import TestbedError

    assert isinstance(result.exception, TestbedError)
    assert (result.exception.exit_code, sentence in str(result.exception)) == (code, True)


@pytest.mark.parametrize("package", ["matplotlib", "jinja2", "polars"])
def test_a_missing_library_is_an_error_that_names_the_package_to_install(tmp_path: Path, package: str) -> None:
    run = write_run(tmp_path / "run", ping_pong_rows())
    script = (
        "import importlib.util as u; find = u.find_spec; "
        "u.find_spec = lambda name, *more: None if name == '" + package + "' else find(name, *more); "
        "from testbed.cli.main import main; main()"
    )
    completed = subprocess.run(
        [sys.executable, "-c", script, "report", str(run)], capture_output=True, text=True, check=False
    )
    assert completed.returncode == 3
    assert completed.stderr.startswith(f"testbed: a report needs packages that are not installed ({package})")
    assert "pip install 'netns-testbed[report]'" in completed.stderr


def test_other_commands_do_not_import_the_reports_libraries(tmp_path: Path) -> None:
    program = "import sys; sys.argv[1:] = {}; from testbed.cli.main import testbed; testbed({}, standalone_mode=False); " \
        "print([name for name in ('jinja2', 'matplotlib', 'numpy', 'polars') if name in sys.modules])"  # fmt: skip
    first = write_run(tmp_path / "run", ping_pong_rows())
    for arguments in (["runs", str(first)], ["compare", str(first), str(first)]):
        completed = subprocess.run([sys.executable, "-c", program.format(arguments, arguments)], capture_output=True,
                                   text=True, check=False, env={**os.environ})  # fmt: skip
        assert completed.stdout.splitlines()[-1] == "[]", completed.stderr
