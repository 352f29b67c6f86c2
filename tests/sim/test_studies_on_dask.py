"""Studies on Dask's workers, local ones and those of a remote scheduler: equal rows, and mutual TLS.

TESTBED_LONG=1 also kills a worker and a scheduler.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any, cast

import pytest

from testbed.errors import UnsupportedError
from testbed.studies import dask_engine

LONG = bool(os.environ.get("TESTBED_LONG"))
STUDY = """
[run]
cluster = "star-2"
workload = "random"
mode = "sim"
settings = { messages = 20 }
[grid]
codec = ["generated", "scapy"]
"link.loss" = ["0%", "5%"]
"""
SCHEDULER = '''
import sys
from pathlib import Path

from distributed import LocalCluster
from distributed.security import Security

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    security = Security.temporary()
    for name, text in (
        ("ca", security.tls_ca_file), ("cert", security.tls_client_cert), ("key", security.tls_client_key)
    ):
        (folder / f"{name}.pem").write_text(text)
    with LocalCluster(
        n_workers=2, threads_per_worker=1, security=security, protocol="tls://", host="127.0.0.1", dashboard_address=None
    ) as cluster:
        print(cluster.scheduler_address, flush=True)
        sys.stdin.read()
'''  # fmt: skip
TESTBED = Path(sys.executable).with_name("testbed")


def study(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "study.toml").write_text(STUDY)
    command = [TESTBED, "study", folder / "study.toml", *options, "--json"]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


def outcomes(completed: subprocess.CompletedProcess[str]) -> list[str]:
    assert completed.stdout, completed.stderr
    points = json.loads(completed.stdout)["points"]
    assert all("licences of Scapy" in point["error"] for point in points if point["outcome"] == "failed")
    return [point["outcome"] for point in points]


def test_dask_workers_compute_the_same_rows_and_do_not_import_scapy(tmp_path: Path) -> None:
    on_local_workers = study(tmp_path, "--workers", "1", "--output", str(tmp_path / "local"))
    assert outcomes(on_local_workers) == ["done"] * 4
    on_dask = study(tmp_path, "--scheduler", "here", "--workers", "2", "--output", str(tmp_path / "dask"))
    assert outcomes(on_dask) == ["done", "done", "failed", "failed"]
    assert on_dask.returncode == 10
    rows = (tmp_path / "local" / "rows.jsonl").read_bytes()
    assert rows.startswith((tmp_path / "dask" / "rows.jsonl").read_bytes())


@contextmanager
def remote_scheduler(folder: Path) -> Iterator[tuple[subprocess.Popen[str], str, list[str]]]:
    """A scheduler with two workers: its process, its address, and the options of its certificates."""
    files = [f"--tls-{name}={folder / name}.pem" for name in ("ca", "cert", "key")]
    with subprocess.Popen(
        [sys.executable, "-c", SCHEDULER, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as scheduler:
        try:
            assert scheduler.stdout is not None
            address = scheduler.stdout.readline().strip()
            assert address.startswith("tls://127.0.0.1:")
            yield scheduler, address, files
        finally:
            scheduler.communicate()


def test_a_remote_scheduler_accepts_only_clients_with_the_certificate(tmp_path: Path) -> None:
    with remote_scheduler(tmp_path) as (_, address, files):
        completed = study(tmp_path, "--scheduler", address, *files, "--output", str(tmp_path / "out"))
        assert outcomes(completed) == ["done", "done", "failed", "failed"]
        without_tls = study(tmp_path, "--scheduler", address.replace("tls", "tcp"), *files)
        unknown_certificate = study(tmp_path, "--scheduler", address, *files[:-1], f"--tls-key={tmp_path / 'cert.pem'}")
    assert without_tls.returncode == 3
    assert "without TLS, everyone on its network could run programs" in without_tls.stderr
    assert unknown_certificate.returncode == 1
    assert "testbed: " in unknown_certificate.stderr
    assert "Traceback" not in unknown_certificate.stderr


class VersionsClient:
    """A client whose workers have given versions of testbed; an exception stands for a failed query."""

    def __init__(self, versions: Mapping[str, str | Exception]) -> None:
        self.versions = versions

    def run(self, function: object, name: str, *, on_error: str) -> Mapping[str, str | Exception]:
        assert (function, name, on_error) == (metadata.version, "netns-testbed", "return")
        return self.versions


def test_workers_with_another_or_no_testbed_are_rejected() -> None:
    ours = metadata.version("netns-testbed")

    def check(**versions: str | Exception) -> None:
        dask_engine.check_versions(cast("Any", VersionsClient(versions)))

    check(a=ours, b=ours)
    with pytest.raises(UnsupportedError, match=rf"^worker b has testbed 0\.0\.1, and this is testbed {ours}: install "):
        check(a=ours, b="0.0.1")
    with pytest.raises(UnsupportedError, match=r"^worker a has no testbed \(No package metadata was found for "):
        check(a=PackageNotFoundError("netns-testbed"), b=ours)


WORKLOADS = '''
import os, signal, time
from pathlib import Path

async def steps(comm, node, *, number: int = 0, seconds: float = 0):
    """One row; number 1 kills its process."""
    if comm.rank == 0:
        if number == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(seconds)
        node.row(number=number)
'''
STEPS = """
[run]
cluster = "star-2"
workload = "work.py:steps"
mode = "sim"
settings = {{ seconds = {seconds} }}
[grid]
"settings.number" = {numbers}
"""

if LONG:

    def test_a_worker_that_dies_fails_its_point_and_no_other(tmp_path: Path) -> None:
        (tmp_path / "work.py").write_text(WORKLOADS)
        (tmp_path / "steps.toml").write_text(STEPS.format(seconds=0.0, numbers=[0, 1, 2, 3]))
        command = [TESTBED, "study", tmp_path / "steps.toml", "--scheduler", "here", "--workers", "2", "--json"]
        completed = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, cwd=tmp_path)
        points = json.loads(completed.stdout)["points"]
        assert [point["outcome"] for point in points] == ["done", "failed", "done", "done"]
        assert (points[1]["attempt"], points[1]["error"].partition(":")[0]) == (2, "KilledWorker")
        assert "Traceback" not in completed.stderr

    def test_a_killed_scheduler_is_reported_and_completed_points_stay(tmp_path: Path) -> None:
        (tmp_path / "work.py").write_text(WORKLOADS)
        (tmp_path / "steps.toml").write_text(STEPS.format(seconds=0.2, numbers=[0, *range(2, 40)]))
        out = tmp_path / "out"
        command = [TESTBED, "study", tmp_path / "steps.toml", "--output", out]
        with remote_scheduler(tmp_path) as (scheduler, address, files):
            running = subprocess.Popen([*command, "--scheduler", address, *files], stderr=subprocess.PIPE, text=True)
            deadline = time.monotonic() + 60
            while not (out / "points.jsonl").exists() or (out / "points.jsonl").read_text().count("\n") < 3:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            scheduler.send_signal(signal.SIGKILL)
            _, errors = running.communicate(timeout=60)
        assert running.returncode == 1
        assert f"is lost; 'testbed study --continue {out}' continues it" in errors
        assert "Traceback" not in errors
        completed_points = (out / "points.jsonl").read_text()
        continued = subprocess.run([TESTBED, "study", "--continue", out], capture_output=True, check=False)
        assert continued.returncode == 0
        assert (out / "points.jsonl").read_text().startswith(completed_points)
        assert len((out / "rows.jsonl").read_text().splitlines()) == 39


@pytest.mark.parametrize(
    ("options", "code", "sentence"),
    [
        (["--scheduler", "tls://lab:1"], 2, "--scheduler needs --tls-ca, --tls-cert and --tls-key"),
        (["--scheduler", "tls://lab:1", "--workers", "2"], 2, "--workers is for this machine"),
        (
            ["--scheduler", "tls://lab:1", *["--tls-ca", "a", "--tls-cert", "b", "--tls-key", "c"]],
            4,
            "there is no file a",
        ),
        *[
            (
                ["--scheduler", address, *["--tls-ca", "a", "--tls-cert", "b", "--tls-key", "c"]],
                3,
                f"scheduler {address}: expected tls://HOST:PORT",
            )
            for address in ("tls://lab", "tls://", "tls://lab:port", "tls://lab:99999")
        ],
    ],
)
def test_invalid_scheduler_options_are_errors_with_the_reason(
    options: list[str], code: int, sentence: str, tmp_path: Path
) -> None:
    completed = study(tmp_path, *options)
    assert completed.returncode == code
    assert sentence in completed.stderr
