"""A third-party fabric, a token ring (`tests/packages`), through the relay: commands, kernel protocols and EMP."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.testbed_command import testbed

PACKAGES = Path(__file__).parents[1] / "packages"
pytestmark = [pytest.mark.requires("root", "ping"), pytest.mark.usefixtures("machine")]


@pytest.fixture
def ring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Bring up a ring of four nodes with the package on the path."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(PACKAGES), os.environ.get("PYTHONPATH", "")])))
    description = tmp_path / "ring.toml"
    description.write_text(
        'name = "ring"\n[generate]\nshape = "star"\nnodes = 4\nkind = "ring"\n[defaults.link]\ndelay = "500us"\n'
    )
    up = testbed("up", str(description))
    assert up.returncode == 0, up.stderr
    assert "by relay: n1:eth0--s1:1, n2:eth0--s1:2" in up.stdout
    yield
    down = testbed("down", "--all")
    assert down.returncode == 0, down.stderr


def test_status_inject_capture_check_and_rules_work_on_a_third_party_fabric(ring: None, tmp_path: Path) -> None:  # noqa: ARG001
    assert testbed("exec", "n1", "--", "ping", "-c2", "-i0.05", "-W2", "n2").returncode == 0
    assert "up, by relay: delay 500us" in testbed("status").stdout

    injected = testbed("inject", "n3", "--rule", "drop icmp and nth(2)", "--direction", "in")
    assert injected.returncode == 0, injected.stderr
    pinged = testbed("exec", "n1", "--", "ping", "-c4", "-i0.05", "-W1", "n3")
    assert "4 packets transmitted, 3 received" in pinged.stdout
    assert "rule 'drop icmp and nth(2)'" in testbed("status").stdout
    assert testbed("heal").returncode == 0

    rejected = testbed("inject", "n3", "--jitter", "1us")
    assert rejected.returncode == 3
    assert "a ring has one rate and one order: it can have no jitter" in rejected.stderr

    capture = tmp_path / "n4.pcapng"
    # Traffic during the capture, which ends with the eighth frame.
    pings = "for i in $(seq 40); do ping -c1 -W1 -q n4 >/dev/null; sleep 0.1; done"
    started = testbed("exec", "n1", "--", "sh", "-c", f"({pings}) >/dev/null 2>&1 &")
    assert started.returncode == 0, started.stderr
    captured = testbed("capture", "n4", "-w", str(capture), "--count", "8", "--for", "10s")
    assert "8 at n4:eth0" in captured.stdout + captured.stderr
    assert capture.stat().st_size > 8 * 98

    checked = testbed("check", "n1", "--json")
    assert checked.returncode == 0, checked.stderr
    assert "token ring links were not probed" in checked.stdout


def test_emp_messages_arrive_intact_over_a_lossy_ring(ring: None, tmp_path: Path) -> None:  # noqa: ARG001
    assert testbed("inject", "n1", "--loss", "2%").returncode == 0
    run = testbed(
        "run", "ring", "random", "--protocol", "emp", "--set", "messages=60", "--seed", "3", "--check",
        "--output", str(tmp_path / "run"),
    )  # fmt: skip
    assert run.returncode in (0, 8), run.stderr  # 8: degraded, on a busy machine
    assert "checks: nothing wrong with" in run.stderr
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["verdict"]["grade"] in ("trusted", "degraded")
    assert result["switches"][0]["s1"]["nobody"] == 0
