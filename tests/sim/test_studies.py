"""Studies: every point once, in any order, after any interruption; rows equal to those of individual runs."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jsonschema
import polars
import pytest
from click.testing import CliRunner

import testbed
from testbed.cli.documents import schema_of
from testbed.cli.main import testbed as command
from testbed.controller.engines import EngineError, ProcessEngine, SerialEngine
from testbed.controller.runs.run_options import PlainOptions
from testbed.errors import ConflictError, DescriptionError, NotFoundError, TestbedError, UnsupportedError
from testbed.spec import units
from testbed.studies import study_runs
from testbed.studies.study_file import OPTIONS, Study, load
from testbed.studies.study_folder import labelled_rows, new_folder, open_folder
from testbed.studies.study_points import compute
from testbed.studies.study_runs import run_study

TESTBED = Path(sys.executable).with_name("testbed")
POINTS = 20
"""Points of the study that is killed."""
STUDY = """
[run]
cluster = "star-3"
workload = "random"
mode = "sim"
settings = { messages = 20 }

[grid]
protocol = ["emp", "via"]
"link.loss" = ["0%", "5%"]
seed = [1, 2]
"""
WORKLOADS = '''
import os, signal
from pathlib import Path

async def steps(comm, node, *, number: int = 0, fatal: int = -1, kills: int = 0):
    """Write one row. The process that computes number `fatal` kills itself, the first `kills` times; 0: each time."""
    if comm.rank == 0:
        attempts = Path(__file__).with_name("attempts")
        with attempts.open("a") as file:
            file.write(f"{number}\\n")
        if number == fatal and (not kills or attempts.read_text().split().count(str(number)) <= kills):
            os.kill(os.getpid(), signal.SIGKILL)
        if number == 99:
            raise ValueError("there is no number 99")
        node.row(number=number)
'''


def study_of(folder: Path, text: str) -> Study:
    (folder / "study.toml").write_text(text)
    return load(folder / "study.toml")


def counting_study(folder: Path, numbers: str, settings: str = "") -> Study:
    """Return a study whose runs append their numbers to the file `attempts`."""
    (folder / "work.py").write_text(WORKLOADS)
    return study_of(folder, f"""
[run]
cluster = "star-2"
workload = "work.py:steps"
mode = "sim"
settings = {{ {settings} }}
[grid]
"settings.number" = {numbers}
""")  # fmt: skip


def attempts(folder: Path) -> list[str]:
    return sorted((folder / "attempts").read_text().split(), key=int)


def test_a_studys_rows_equal_those_of_individual_runs_to_the_byte(tmp_path: Path) -> None:
    study = study_of(tmp_path, STUDY)
    folders = {width: tmp_path / f"of-{width}" for width in (1, 2)}
    for width, folder in folders.items():
        outcomes = run_study(study, new_folder(folder, study), ProcessEngine(2) if width == 2 else SerialEngine())
        assert [outcomes[number].outcome for number in range(8)] == ["done"] * 8
    texts = [(folder / "rows.jsonl").read_bytes() for folder in folders.values()]
    assert texts[0] == texts[1]
    rows = [json.loads(line) for line in texts[0].splitlines()]
    for number, point in enumerate(study.points):
        result = testbed.run(
            testbed.Cluster.star(3, loss=str(point["link.loss"])), "random", mode="sim", settings={"messages": 20},
            protocol=str(point["protocol"]), seed=int(point["seed"]),
        )  # fmt: skip
        labels = {"point": number, **{name: point[name] for name in study.varied}}
        assert [row for row in rows if row["point"] == number] == [{**labels, **row} for row in result.rows]
    table = polars.read_parquet(folders[2] / "rows.parquet")
    assert table["took_ns"].to_list() == [row["took_ns"] for row in rows]
    assert table["link.loss"].unique().sort().to_list() == ["0%", "5%"]


def test_a_latin_hypercube_has_one_point_in_every_part_of_each_range(tmp_path: Path) -> None:
    study = study_of(tmp_path, """
[run]
cluster = "star-2"
workload = "pingpong"
mode = "sim"
[latin]
points = 10
seed = 3
ranges = { "link.delay" = { from = "1us", to = "1024us", scale = "log" }, "settings.count" = { from = 0, to = 100 } }
""")  # fmt: skip
    delays = [units.parse_duration(point["link.delay"]) for point in study.points]
    assert sorted(math.floor(math.log2(delay / 1000)) for delay in delays) == list(range(10))
    counts = sorted(int(point["settings.count"]) for point in study.points)
    assert all(10 * part <= count <= 10 * part + 10 for part, count in enumerate(counts))
    assert study.points == load(tmp_path / "study.toml").points


def test_a_killed_study_continues_and_repeats_nothing(tmp_path: Path) -> None:
    counting_study(tmp_path, str(list(range(POINTS))))
    directory = tmp_path / "out"
    process = subprocess.Popen(
        [TESTBED, "study", tmp_path / "study.toml", "--output", directory, "--workers", "2"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while lines(directory) < 5:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.kill()
    process.wait()
    lines_before = lines(directory)
    assert 5 <= lines_before < POINTS
    with (directory / "points.jsonl").open("a") as file:
        file.write(f'{{"point": {POINTS - 1}, "attem')  # as left by a process killed during the write
    folder, study = open_folder(directory)
    outcomes = run_study(study, folder, SerialEngine())
    assert sorted(outcomes) == list(range(POINTS))
    assert all(outcome.is_done for outcome in outcomes.values())
    counts = {number: attempts(tmp_path).count(str(number)) for number in range(POINTS)}
    repeated = [number for number, count in counts.items() if count > 1]
    assert len(repeated) <= 2, "more points were repeated than two workers had in progress"
    assert len((directory / "rows.jsonl").read_text().splitlines()) == POINTS


def lines(folder: Path) -> int:
    file = folder / "points.jsonl"
    return file.read_text().count("\n") if file.exists() else 0


def test_a_point_whose_process_dies_is_retried_and_reported_and_the_others_continue(tmp_path: Path) -> None:
    study = counting_study(tmp_path, "[0, 1, 2, 3, 4, 5]", "fatal = 3")
    outcomes = run_study(study, new_folder(tmp_path / "out", study), ProcessEngine(2))
    failed = {number: outcome for number, outcome in outcomes.items() if not outcome.is_done}
    assert {number: (failure.error, failure.attempt) for number, failure in failed.items()} == {
        3: ("its process died", 2)
    }
    assert len(outcomes) == 6


def test_a_point_whose_process_dies_once_is_done_the_second_time(tmp_path: Path) -> None:
    study = counting_study(tmp_path, "[0, 1, 2, 3]", "fatal = 2, kills = 1")
    outcomes = run_study(study, new_folder(tmp_path / "out", study), ProcessEngine(2))
    assert all(outcome.is_done for outcome in outcomes.values())


def test_a_completed_point_is_not_repeated_after_another_points_process_died(tmp_path: Path) -> None:
    class Breaking(Executor):
        """An executor that computes point 0, and breaks at the same time."""

        def submit(self, function: Any, /, *arguments: Any, **_: Any) -> Future[Any]:
            future: Future[Any] = Future()
            if json.loads(arguments[0])["parameters"]["settings.number"] == 0:
                future.set_result(function(*arguments))
            else:
                future.set_exception(BrokenExecutor())
            return future

    class BreakingEngine:
        width = 2

        @contextmanager
        def open(self) -> Iterator[Executor]:
            yield Breaking()

    study = counting_study(tmp_path, "[0, 1]")
    outcomes = run_study(study, new_folder(tmp_path / "out", study), BreakingEngine())
    assert [outcomes[number].is_done for number in range(2)] == [True, False]
    assert attempts(tmp_path) == ["0"]


def test_with_one_worker_a_run_that_kills_its_process_fails_alone(tmp_path: Path) -> None:
    counting_study(tmp_path, "[0, 1, 2]", "fatal = 1")
    command = [
        TESTBED,
        "study",
        tmp_path / "study.toml",
        "--output",
        tmp_path / "out",
        "--workers",
        "1",
        "--retries",
        "0",
    ]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 10, ended.stderr
    assert "point 1 failed, attempt 1: its process died" in ended.stderr
    assert len((tmp_path / "out" / "rows.jsonl").read_text().splitlines()) == 2


def test_a_folder_in_use_by_another_process_is_rejected(tmp_path: Path) -> None:
    study = counting_study(tmp_path, "[1]")
    folder = new_folder(tmp_path / "out", study)
    with folder.locked(), pytest.raises(ConflictError, match=r"another process computes the points of .*/out: wait"):
        run_study(study, open_folder(tmp_path / "out")[0], SerialEngine())
    assert not (tmp_path / "attempts").exists()
    assert run_study(study, folder, SerialEngine())[0].is_done


def test_an_error_while_a_folder_is_locked_is_not_taken_for_another_process(tmp_path: Path) -> None:
    folder = new_folder(tmp_path / "out", counting_study(tmp_path, "[1]"))
    with pytest.raises(BlockingIOError), folder.locked():
        raise BlockingIOError


def test_the_error_of_a_point_is_one_line_with_the_reason(tmp_path: Path) -> None:
    counting_study(tmp_path, "[99]")
    result = CliRunner().invoke(
        command, ["study", str(tmp_path / "study.toml"), "--output", str(tmp_path / "out"), "--workers", "1"]
    )
    assert "point 0 failed, attempt 1: n1: ValueError: there is no number 99\n" in result.output


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ("mode = ['sim', 'simm']", "mode: found 'simm', expected sim, live or dilated"),
        ("seed = [1, -1]", "seed: found -1, expected 0 to "),
        ("codec = ['generated', 'generate']", "codec: found 'generate', expected generated or scapy"),
        ("queues = [1, 65]", "queues: found 65, expected 1 to 64"),
        ("ranks_per_node = [1, 65]", "ranks_per_node: found 65, expected 1 to 64"),
        ("protocol = ['emp', 'enp']", "protocol: no protocol is called 'enp' — did you mean 'emp'?"),
        ("profile = ['ideal', 'idea']", "profile: unknown profile 'idea' — did you mean 'ideal'?"),
        ("workload = ['work.py:steps', 'work.py:step']", "workload: "),
        ("cluster = ['star-2', 'no-such']", "cluster: "),
        ("scenario = ['missing.toml']", "scenario: there is no file "),
        ("'settings.number' = [1, 'x']", "settings.number: found 'x', expected a whole number"),
        ("'settings.numer' = [1]", "settings: found unknown setting 'numer', expected one of the settings number"),
        ("'link.loss' = ['0%', '101%']", "link.loss: found '101%', expected a probability"),
        ("'firmware.no_such' = [1]", "firmware: found unknown setting 'no_such', expected one of the settings "),
    ],
)
def test_an_invalid_value_of_any_point_is_rejected_before_the_first_run(
    table: str, sentence: str, tmp_path: Path
) -> None:
    (tmp_path / "work.py").write_text(WORKLOADS)
    shared = {"cluster": "star-2", "workload": "work.py:steps", "mode": "sim"}
    common = "".join(f"{name} = '{value}'\n" for name, value in shared.items() if not table.startswith(name))
    (tmp_path / "study.toml").write_text(f"[run]\n{common}[grid]\n{table}\n")
    for arguments in (["--output", str(tmp_path / "out")], ["--dry-run"]):
        result = CliRunner().invoke(command, ["study", str(tmp_path / "study.toml"), *arguments])
        assert isinstance(result.exception, DescriptionError), result.output
        assert f"\n  {sentence}" in str(result.exception)
        assert not (tmp_path / "attempts").exists()
        assert not (tmp_path / "out").exists()


def test_a_continued_study_checks_its_remaining_points_before_the_first_run(tmp_path: Path) -> None:
    study = counting_study(tmp_path, "[1, 2, 3]")
    new_folder(tmp_path / "out", study)
    (tmp_path / "work.py").write_text(WORKLOADS.replace("number: int = 0", "number: Literal[1, 3] = 1, more: int = 0")
                                      .replace("import os", "from typing import Literal\nimport os"))  # fmt: skip
    with pytest.raises(DescriptionError, match=r"settings\.number: found 2, expected one of 1, 3"):
        run_study(study, open_folder(tmp_path / "out")[0], SerialEngine())
    assert not (tmp_path / "attempts").exists()


def test_an_unsupported_combination_is_the_outcome_of_its_point(tmp_path: Path) -> None:
    text = "[run]\ncluster='star-2'\nworkload='pingpong'\nmode='sim'\nsettings={count=1,sizes='4'}\n"
    study = study_of(tmp_path, text + "[grid]\nprotocol = ['emp', 'tcp']\n")
    outcomes = run_study(study, new_folder(tmp_path / "out", study), SerialEngine())
    assert [outcomes[number].outcome for number in range(2)] == ["done", "failed"]
    assert "tcp is a kernel protocol" in outcomes[1].error


class LosingEngine:
    """An engine that loses its workers after some points: pending points are cancelled, as by Dask's client."""

    width = 2

    def __init__(self, computed: int) -> None:
        self.computed = computed

    @contextmanager
    def open(self) -> Iterator[Executor]:
        engine = self

        class Losing(Executor):
            def submit(self, function: Any, /, *arguments: Any, **_: Any) -> Future[Any]:
                future: Future[Any] = Future()
                if engine.computed:
                    engine.computed -= 1
                    future.set_result(function(*arguments))
                else:
                    future.cancel()
                    future.set_running_or_notify_cancel()
                return future

        yield Losing()


def test_a_study_whose_engine_loses_its_workers_keeps_its_points_and_continues(tmp_path: Path) -> None:
    study = counting_study(tmp_path, "[0, 1, 2, 3, 4]")
    folder = new_folder(tmp_path / "out", study)
    with pytest.raises(EngineError, match="the connection to the scheduler of the workers is lost"):
        run_study(study, folder, LosingEngine(3))
    assert attempts(tmp_path) == ["0", "1", "2"]
    outcomes = run_study(study, open_folder(tmp_path / "out")[0], SerialEngine())
    assert all(outcomes[number].is_done for number in range(5))
    assert attempts(tmp_path) == ["0", "1", "2", "3", "4"]


class BrokenEngine:
    """An engine that cannot call the function."""

    width = 1

    @contextmanager
    def open(self) -> Iterator[Executor]:
        class Broken(Executor):
            def submit(self, function: Any, /, *arguments: Any, **_: Any) -> Future[Any]:
                del function, arguments
                future: Future[Any] = Future()
                future.set_exception(ModuleNotFoundError("No module named 'testbed'"))
                return future

        yield Broken()


def test_a_point_that_an_engine_cannot_compute_has_the_engines_error(tmp_path: Path) -> None:
    study = counting_study(tmp_path, "[0]")
    outcomes = run_study(study, new_folder(tmp_path / "out", study), BrokenEngine())
    assert (outcomes[0].attempt, outcomes[0].error) == (2, "ModuleNotFoundError: No module named 'testbed'")


def test_the_attempts_of_a_point_are_counted_on_when_a_study_is_continued(tmp_path: Path) -> None:
    study = counting_study(tmp_path, "[0]")
    new_folder(tmp_path / "out", study)
    for last_attempt in (2, 4):
        outcomes = run_study(study, open_folder(tmp_path / "out")[0], BrokenEngine())
        assert outcomes[0].attempt == last_attempt


def test_a_failed_point_has_an_error_message_and_sets_the_exit_code(tmp_path: Path) -> None:
    counting_study(tmp_path, "[1, 99, 2]")
    result = CliRunner().invoke(
        command, ["study", str(tmp_path / "study.toml"), "--output", str(tmp_path / "out"), "--workers", "1", "--json"]
    )
    assert result.exit_code == 10
    document = json.loads(result.stdout)
    jsonschema.validate(document, dict(schema_of("study")))
    assert [point["outcome"] for point in document["points"]] == ["done", "failed", "done"]
    assert "there is no number 99" in document["points"][1]["error"]
    # The text has another length: Python uses its cached code for a file of equal size and second.
    (tmp_path / "work.py").write_text(WORKLOADS.replace("number == 99", "number == 9999"))
    continued = CliRunner().invoke(command, ["study", "--continue", str(tmp_path / "out"), "--workers", "1"])
    assert continued.exit_code == 0, continued.output
    assert attempts(tmp_path) == ["1", "2", "99", "99"]


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("", ["the key 'cluster'", "the key 'workload'"]),
        ("[run]\ncluster='star-2'\nworkload='pingpong'\n", ["nothing that varies"]),
        ("[run]\ncluster='star-2'\nworklod='pingpong'\n[grid]\nseed=[1]\n", ["did you mean 'workload'?"]),
        ("[run]\ncluster='star-2'\nworkload='pingpong'\n[grid]\nseed=[]\n", ["grid.seed", "a list of at least one value"]),
        ("[run]\ncluster='star-2'\nworkload='pingpong'\n[grid]\nseed=['x']\n", ["grid.seed[1]", "expected an integer"]),
        ("[run]\ncluster='star-2'\nworkload='pingpong'\n[latin]\n", ["latin.points: expected a number of points"]),
        ("[run]\ncluster='star-2'\nworkload='pingpong'\n[grid]\n'settings.size'=[[1]]\n",
         ["found [1], expected a text, a number, true or false"]),
        ("[swarm]\n", ["swarm.protocols: expected a list", "swarm.cases: expected an integer, 1 or more"]),
        ("[run]\ncluster='star-2'\nworkload='pingpong'\n[grid]\n'link.los'=['1%']\n", ["did you mean 'loss'?"]),
        ("[run]\ncluster='star-2'\nworkload='pingpong'\n[gird]\nseed=[1]\n", ["did you mean 'grid'?"]),
        (
            "[run]\ncluster='star-2'\nworkload='pingpong'\n[latin]\npoints=0\nranges={'link.delay'={from='2us',to='1us'}}\n",
            ["latin.points", "1 to 1,000,000", "more than '2us'"],
        ),
        ("[run]\ncluster='star-2'\nworkload='pingpong'\n[grid]\nseed=[1]\n[resources]\ncores=0\n", ["resources.cores"]),
        (
            "[run]\ncluster='star-2'\nworkload='pingpong'\n[grid]\nseed=[1]\n[resources]\ncores=2\nexclusive=true\n",
            ["resources: expected either cores, or exclusive = true"],
        ),
        (
            "[run]\ncluster='star-2'\nworkload='pingpong'\n[grid]\nseed=[1]\n[resources]\nexclusive=1\n",
            ["resources.exclusive: found 1"],
        ),
        (
            "[run]\ncluster='star-2'\nworkload='pingpong'\ncores=2\n[[point]]\nseed=1\ncores=0\n"
            "[[point]]\nseed=2\nexclusive=1\n",
            ["run: found unknown key 'cores'", "point[1].cores: found 0", "point[2].exclusive: found 1"],
        ),
        (
            "[run]\ncluster='star-2'\nworkload='pingpong'\n[grid]\ncores=[1, 2]\n[[point]]\nseed=1\n"
            "[[point]]\nseed=2\nexclusive=true\n",
            ["cores = 1, exclusive = true of point 1, expected either cores, or exclusive = true"],
        ),
        (
            "[run]\ncluster='star-2'\nworkload='pingpong'\n[[point]]\nseed=1\n[[point]]\nseed=2\nexclusive=false\n",
            ["exclusive = false of point 1, expected either cores, or exclusive = true"],
        ),
        (
            "[run]\ncluster='star-2'\nworkload='pingpong'\n[grid]\n'link.loss'=['0%']\nlink={loss=['1%']}\n",
            ["grid.link.loss: found twice in this table"],
        ),
        (
            "[run]\ncluster='star-2'\nworkload='pingpong'\n[grid]\nseed=[1, 2]\n[[point]]\nseed=3\n[[point]]\nseed=3\n",
            ["point[1].seed: found also in [grid]", "point: found two equal tables"],
        ),
        (
            "[run]\ncluster='star-2'\nworkload='pingpong'\n[latin]\npoints=2\n"
            "ranges={protocol={from=1,to=2},seed={from=0.5,to=2}}\n",
            ["latin.ranges.protocol: found 1", "latin.ranges.seed: found 0.5", "expected an integer"],
        ),
        (
            "[run]\ncluster='star-2'\nworkload='pingpong'\n[grid]\n"
            + "".join(f"'settings.s{number}'={list(range(100))}\n" for number in range(8)),
            ["10,000,000,000,000,000 points", "at most 1,000,000"],
        ),
    ],
)  # fmt: skip
def test_an_invalid_study_file_is_rejected_with_all_its_errors(text: str, sentences: list[str], tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text(text)
    with pytest.raises(DescriptionError) as raised:
        load(tmp_path / "study.toml")
    assert all(sentence in str(raised.value) for sentence in sentences), raised.value


def test_a_required_parameter_with_an_invalid_value_is_not_also_reported_as_missing(tmp_path: Path) -> None:
    with pytest.raises(DescriptionError) as raised:
        study_of(tmp_path, "[run]\ncluster = 3\n[grid]\nworkload = []\nseed = [1]\n")
    assert [problem.path for problem in raised.value.problems] == ["run.cluster", "grid.workload"]


def test_paths_are_relative_to_the_study_file_and_options_are_those_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "slow.toml").write_text('like = "emp-2001"\nreceive = "11us"\n')
    study = study_of(tmp_path, """
[run]
cluster = "star-2"
workload = "pingpong"
mode = "sim"
settings = { count = 10, sizes = "4" }
[grid]
profile = ["emp-2001", "slow.toml"]
""")  # fmt: skip
    outcomes = run_study(study, new_folder(tmp_path / "out", study), SerialEngine())
    assert [outcomes[number].error for number in range(2)] == ["", ""]
    default_time, slow_time = (outcomes[number].rows[0]["p50_ns"] for number in range(2))
    assert slow_time > default_time
    assert OPTIONS.keys() - {"cluster", "workload"} <= PlainOptions.__annotations__.keys()


def test_damaged_outcomes_are_reported(tmp_path: Path) -> None:
    study = counting_study(tmp_path, "[1]")
    new_folder(tmp_path / "out", study)
    (tmp_path / "out" / "points.jsonl").write_text('{"point": 0, "attempts": 1}\n')
    with pytest.raises(TestbedError, match=r"points\.jsonl is damaged"):
        open_folder(tmp_path / "out")[0].outcomes()


def test_folders_without_a_study_are_rejected(tmp_path: Path) -> None:
    study = counting_study(tmp_path, "[1]")
    with pytest.raises(NotFoundError, match="is not the folder of a study"):
        open_folder(tmp_path)
    with pytest.raises(ConflictError, match="--continue continues a study"):
        new_folder(tmp_path, study)
    new_folder(tmp_path / "out", study)
    (tmp_path / "out" / "study.json").write_text("[" * 10)
    with pytest.raises(TestbedError, match="is damaged"):
        open_folder(tmp_path / "out")


class RecordingEngine(Executor):
    """An engine that runs nothing, and records which points run concurrently. Whenever its user waits, the point that began
    first ends."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, width: int = 2) -> None:
        self.width = width
        self.concurrent: set[frozenset[int]] = set()
        self._running: dict[Future[str], int] = {}
        monkeypatch.setattr(study_runs, "wait", self.wait)

    @contextmanager
    def open(self) -> Iterator[Executor]:
        yield self

    def submit(self, function: object, /, *arguments: Any, **_: Any) -> Future[Any]:  # type: ignore[override]
        assert function is compute
        future: Future[str] = Future()
        self._running[future] = json.loads(arguments[0])["parameters"]["settings.sizes"]
        self.concurrent.add(frozenset(self._running.values()))
        return future

    def wait(self, futures: Iterable[Future[str]], *, return_when: str) -> object:
        assert return_when == FIRST_COMPLETED
        first = next(iter(self._running))
        del self._running[first]
        first.set_result(json.dumps({"outcome": "done", "error": "", "verdict": "trusted", "rows": [], "seconds": 0.0}))
        return wait(futures, return_when=return_when)


@pytest.mark.parametrize(
    ("resources", "is_concurrent"),
    [("", False), ("[resources]\nexclusive = true\n", False), ("[resources]\ncores = 1\nexclusive = false\n", True)],
)
def test_a_live_run_has_all_processors_or_those_that_the_study_reserves(
    resources: str, is_concurrent: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = "".join(
        f"[[point]]\nmode = '{'live' if number % 2 else 'sim'}'\nsettings = {{ sizes = {number} }}\n"
        for number in range(8)
    )
    study = study_of(tmp_path, f"[run]\ncluster = 'star-2'\nworkload = 'pingpong'\n{points}{resources}")
    engine = RecordingEngine(monkeypatch)
    assert len(run_study(study, new_folder(tmp_path / "out", study), engine)) == 8
    pairs = [pair for pair in engine.concurrent if len(pair) > 1]
    assert any(any(number % 2 for number in pair) for pair in pairs) is is_concurrent
    assert pairs, "no simulated points ran concurrently"


def test_points_in_namespaces_have_their_own_processors_and_simulated_ones_fill_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = {0: "cores = 3", 1: "cores = 1", 2: "exclusive = true", 3: "cores = 2", 4: ""}
    needed = dict.fromkeys(range(14), 1) | {0: 3, 2: 4, 3: 2, 4: 2}
    points = "".join(
        f"[[point]]\nmode = '{'live' if number in live else 'sim'}'\nsettings = {{ sizes = {number} }}\n"
        + live.get(number, "cores = 4")  # which a simulated point does not take
        + "\n"
        for number in needed
    )
    text = f"[run]\ncluster = 'star-2'\nworkload = 'pingpong'\n{points}[resources]\ncores = 2\n"
    study, engine = study_of(tmp_path, text), RecordingEngine(monkeypatch, 4)
    assert len(run_study(study, new_folder(tmp_path / "out", study), engine)) == 14
    assert all(sum(needed[number] for number in running) <= 4 for running in engine.concurrent)
    assert any({0, 1} <= running for running in engine.concurrent), "both fit, and begin together"
    assert any(3 in running and running - live.keys() for running in engine.concurrent), (
        "simulated points fill the rest"
    )


def test_an_axis_may_reserve_processors_which_the_run_itself_does_not_see(tmp_path: Path) -> None:
    text = "[run]\ncluster = 'star-2'\nworkload = 'pingpong'\nmode = 'sim'\n"
    study = study_of(tmp_path, text + "[grid]\nexclusive = [true, false]\n[resources]\ncores = 2\n")
    assert [study.cores_of(number) for number in range(2)] == [None, 2]
    outcomes = run_study(study, new_folder(tmp_path / "out", study), SerialEngine())
    assert [outcome.error for outcome in outcomes.values()] == ["", ""]
    assert [row["exclusive"] for row in labelled_rows(study, outcomes)][:: len(outcomes[0].rows)] == [True, False]


def test_a_live_run_that_needs_more_processors_than_workers_is_rejected(tmp_path: Path) -> None:
    study = study_of(tmp_path, "[run]\ncluster='star-2'\nworkload='pingpong'\n[grid]\nseed=[1]\n[resources]\ncores=3\n")
    with pytest.raises(UnsupportedError, match="point 0 takes 3 processors, and there are 2 workers"):
        run_study(study, new_folder(tmp_path / "out", study), ProcessEngine(2))
