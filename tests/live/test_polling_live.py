"""Programs that poll in namespaces: progress compared with blocking calls, on one core and on two.

TESTBED_LONG=1 adds every protocol, inline and shared NICs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import pytest

import testbed
from testbed import Cluster, RunningCluster
from testbed.runtime.nodes.node_run import ProgramError
from tests.sim.mpi_script_files import with_testbed_import

pytestmark = [pytest.mark.alone, pytest.mark.requires("root"), pytest.mark.usefixtures("machine")]

LONG = bool(os.environ.get("TESTBED_LONG"))
MAX_RATIO = 3
SLEEP_TIME = 2 * 1_100  # microseconds of a round trip in which both programs sleep once for 1 ms
SCRIPT = Path(__file__).with_name("polling_script.py")

SELECTED = [
    ("emp", "inline", 1),
    ("emp", "shared", 1),
    ("am2", "inline", 1),
    ("tcp", "inline", 1),
    ("am2", "shared", 2),
]
ALL = [
    *(
        (protocol, nics, cores)
        for protocol in ("emp", "am2", "via", "openmx")
        for nics in ("inline", "shared")
        for cores in (1, 2)
    ),
    *((protocol, "inline", cores) for protocol in ("ssam", "tcp") for cores in (1, 2)),
]
TWO = pytest.mark.requires("two-cpus")
CONFIGURATIONS = [
    pytest.param(*configuration, marks=TWO if configuration[2] == 2 else ())
    for configuration in (ALL if LONG else SELECTED)
]


@pytest.fixture(scope="module")
def star() -> Iterator[RunningCluster]:
    with Cluster.star(2).up() as cluster:
        yield cluster


@contextmanager
def on_cores(count: int) -> Iterator[None]:
    """Restrict this process and its children to `count` cores."""
    allowed = os.sched_getaffinity(0)
    assert len(allowed) >= count
    os.sched_setaffinity(0, sorted(allowed)[-count:])
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def measure(star: RunningCluster, protocol: str, nics: Literal["inline", "shared"], folder: Path) -> dict[str, float]:
    testbed.run(star, str(SCRIPT), protocol=protocol, nics=nics, settings={"args": "3"}, timeout=60, output=folder)
    times: dict[str, float] = json.loads((folder / "logs" / "n1.log").read_text())
    return times


def excessive_ratios(times: dict[str, float]) -> dict[str, float]:
    """Return the ratios of polling to blocking that exceed MAX_RATIO."""
    ratios = {}
    for method, duration in times.items():
        blocking = times["probe" if "probe" in method else "recv"] + (SLEEP_TIME if method.endswith("sleep") else 0)
        if duration > MAX_RATIO * blocking:
            ratios[method] = duration / blocking
    return ratios


@pytest.mark.parametrize(("protocol", "nics", "cores"), CONFIGURATIONS)
def test_a_polling_program_takes_at_most_three_times_as_long_as_a_blocking_one(
    star: RunningCluster, tmp_path: Path, protocol: str, nics: Literal["inline", "shared"], cores: int
) -> None:
    """Compare the minima of several measurements, to exclude other processes of the machine."""
    times: dict[str, float] = {}
    with on_cores(cores):
        for attempt in range(4):
            for method, duration in measure(star, protocol, nics, tmp_path / str(attempt)).items():
                times[method] = min(times.get(method, duration), duration)
            if not excessive_ratios(times):
                break
    assert not excessive_ratios(times), times


@pytest.mark.parametrize(("protocol", "nics"), [("emp", "inline"), ("am2", "shared")])
def test_scripts_that_poll_terminate(
    star: RunningCluster, tmp_path: Path, protocol: str, nics: Literal["inline", "shared"]
) -> None:
    for script, arguments in (("master_worker.py", "24"), ("pipeline.py", "0"), ("pipeline.py", "0.001")):
        folder = tmp_path / (script + arguments)
        testbed.run(
            star, with_testbed_import(script, tmp_path), protocol=protocol, nics=nics, settings={"args": arguments},
            check=True, timeout=30, output=folder,
        )  # fmt: skip
        logs = [(folder / "logs" / f"{node}.log") for node in ("n1", "n2")]
        assert any(
            log.exists() and log.read_text() in ("all tasks are done\n", "12 items have come through\n") for log in logs
        )


def test_a_progress_thread_is_rejected_with_the_alternative(star: RunningCluster, tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match=r"only the thread in which the program began may call it .*let that one"):
        testbed.run(star, with_testbed_import("progress_thread.py", tmp_path), timeout=20)
