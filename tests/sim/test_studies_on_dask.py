"""Studies on Dask's workers, here and of a scheduler elsewhere: the same rows; no scheduler without mutual TLS."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

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


def test_dasks_workers_give_the_rows_of_our_own_and_none_of_them_imports_scapy(tmp_path: Path) -> None:
    on_own_workers = study(tmp_path, "--workers", "1", "--output", str(tmp_path / "ours"))
    assert outcomes(on_own_workers) == ["done"] * 4
    on_dask = study(tmp_path, "--scheduler", "here", "--workers", "2", "--output", str(tmp_path / "theirs"))
    assert outcomes(on_dask) == ["done", "done", "failed", "failed"]
    assert on_dask.returncode == 10
    rows = (tmp_path / "ours" / "rows.jsonl").read_bytes()
    assert rows.startswith((tmp_path / "theirs" / "rows.jsonl").read_bytes())


def test_a_scheduler_elsewhere_knows_us_by_a_certificate_and_nobody_else(tmp_path: Path) -> None:
    files = ["--tls-ca", str(tmp_path / "ca.pem"), "--tls-cert", str(tmp_path / "cert.pem"), "--tls-key", str(tmp_path / "key.pem")]  # fmt: skip  # noqa: E501
    with subprocess.Popen(
        [sys.executable, "-c", SCHEDULER, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as scheduler:
        assert scheduler.stdout is not None
        address = scheduler.stdout.readline().strip()
        assert address.startswith("tls://127.0.0.1:")
        completed = study(tmp_path, "--scheduler", address, *files, "--output", str(tmp_path / "out"))
        assert outcomes(completed) == ["done", "done", "failed", "failed"]
        without_tls = study(tmp_path, "--scheduler", address.replace("tls", "tcp"), *files)
        unknown_certificate = study(tmp_path, "--scheduler", address, *files[:-1], str(tmp_path / "cert.pem"))
        scheduler.communicate()
    assert without_tls.returncode == 3
    assert "without TLS anybody on its network could run programs" in without_tls.stderr
    assert unknown_certificate.returncode == 1
    assert "testbed: " in unknown_certificate.stderr
    assert "Traceback" not in unknown_certificate.stderr


@pytest.mark.parametrize(
    ("options", "code", "sentence"),
    [
        (["--scheduler", "tls://lab:1"], 2, "--scheduler needs --tls-ca, --tls-cert and --tls-key"),
        (["--scheduler", "tls://lab:1", "--workers", "2"], 2, "--workers goes with this machine"),
        (
            ["--scheduler", "tls://lab:1", *["--tls-ca", "a", "--tls-cert", "b", "--tls-key", "c"]],
            4,
            "there is no file a",
        ),
    ],
)
def test_what_cannot_be_is_a_sentence(options: list[str], code: int, sentence: str, tmp_path: Path) -> None:
    completed = study(tmp_path, *options)
    assert completed.returncode == code
    assert sentence in completed.stderr
