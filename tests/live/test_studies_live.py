"""Studies with runs in namespaces, which have the machine or the processors that they reserve for themselves."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from tests.live.testbed_command import testbed

pytestmark = [pytest.mark.requires("root", "two-cpus"), pytest.mark.usefixtures("machine")]

WORKLOAD = '''
import time
from pathlib import Path

async def record_span(comm, node, *, number: int = 0):
    """Rank 0 appends its start and end times to a file."""
    start = time.monotonic_ns()
    if comm.rank == 0:
        await comm.send(number, 1)
        await comm.recv(source=1)
        while time.monotonic_ns() < start + 100_000_000:
            time.sleep(0.001)  # model time alone may pass too fast
            await node.sleep(1_000_000)
        node.row(number=number)
        with Path(__file__).with_name("spans").open("a") as file:
            file.write(f"{number} {start} {time.monotonic_ns()}\\n")
    else:
        await comm.send(await comm.recv(source=0), 0)
'''


def test_live_runs_of_a_study_do_not_overlap_other_runs(tmp_path: Path) -> None:
    (tmp_path / "work.py").write_text(WORKLOAD)
    points = [(number, "live" if number % 2 else "sim") for number in range(6)]
    (tmp_path / "study.toml").write_text(
        '[run]\ncluster = "star-2"\nworkload = "work.py:record_span"\n'
        + "".join(f'[[point]]\nmode = "{mode}"\nsettings = {{ number = {number} }}\n' for number, mode in points)
    )
    ran = testbed("study", str(tmp_path / "study.toml"), "--workers", "2", "--output", str(tmp_path / "out"), "--json")
    outcomes = [(point["outcome"], point["error"]) for point in json.loads(ran.stdout)["points"]]
    assert outcomes == [("done", "")] * 6, ran.stderr
    lines = [tuple(map(int, line.split())) for line in (tmp_path / "spans").read_text().splitlines()]
    assert sorted(number for number, *_ in lines) == [number for number, _ in points]
    overlapping = {
        number
        for first, second in itertools.combinations(lines, 2)
        if first[1] < second[2] and second[1] < first[2]
        for number in (first[0], second[0])
    }
    assert not any(number % 2 for number in overlapping)


WAITING_WORKLOAD = '''
import time
from pathlib import Path

async def meet(comm, node, *, number: int = 0, others: int = 0):
    """Rank 0 waits until as many other points run, and reports which do."""
    if comm.rank == 0:
        folder, deadline = Path(__file__).parent, time.monotonic() + 30
        (folder / f"runs-{number}").touch()
        while len(list(folder.glob("runs-*"))) < others + 1 and time.monotonic() < deadline:
            time.sleep(0.005)
        node.row(number=number, running=len(list(folder.glob("runs-*"))))
        await comm.send(number, 1)
        await comm.recv(source=1)
        (folder / f"met-{number}").touch()
        while len(list(folder.glob("met-*"))) < others + 1 and time.monotonic() < deadline:
            time.sleep(0.005)
        (folder / f"runs-{number}").unlink()
    else:
        await comm.send(await comm.recv(source=0), 0)
'''


def test_live_points_run_beside_others_if_they_reserve_one_processor_each(tmp_path: Path) -> None:
    (tmp_path / "work.py").write_text(WAITING_WORKLOAD)
    (tmp_path / "study.toml").write_text(
        '[run]\ncluster = "star-2"\nworkload = "work.py:meet"\nmode = "live"\n'
        "[[point]]\nsettings = { number = 0, others = 1 }\ncores = 1\n"
        "[[point]]\nsettings = { number = 1, others = 1 }\ncores = 1\n"
        "[[point]]\nsettings = { number = 2 }\n"
    )
    ran = testbed("study", str(tmp_path / "study.toml"), "--workers", "2", "--output", str(tmp_path / "out"), "--json")
    points = json.loads(ran.stdout)["points"]
    assert [point["error"] for point in points] == [""] * 3, ran.stderr
    assert [row["running"] for point in points for row in point["rows"]] == [2, 2, 1]
