"""Reports and comparisons of real runs, end to end."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from testbed.cli.main import testbed as command
from testbed.observe.report.builder import page
from testbed.observe.report.run_summary import summarize_run

STORM = """
[[fault]]
kind = "impair"
on = "n1"
from = "100ms"
to = "200ms"
loss = "20%"
"""


def run_command(*arguments: str | Path, code: int = 0) -> str:
    result = CliRunner().invoke(command, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return result.output


def test_a_simulated_run_under_a_scenario_is_reported_with_faults_messages_and_fates(tmp_path: Path) -> None:
    (tmp_path / "storm.toml").write_text(STORM)
    run_command("run", "star-4", "random", "--mode", "sim", "--profile", "emp-2001", "--set", "messages=100",
           "--set", "over=300ms", "--scenario", tmp_path / "storm.toml", "--check",
           "--output", tmp_path / "run")  # fmt: skip
    summary = summarize_run(tmp_path / "run", "")
    assert [(fault.what, fault.begin, fault.end) for fault in summary.repetition.faults] == [
        ("loss 20% on n1", 0.1, 0.2)
    ]
    assert summary.injected == {"n1:eth0--s1:1": ("loss 20% on n1",)}
    assert summary.deliveries is not None
    received = sum(file.read_text().count('"received"') for file in (tmp_path / "run" / "history").iterdir())
    assert summary.deliveries.at.size == received >= 400
    causes = {cause for _, _, cause in summary.fates}
    assert causes == {"loss"}
    html = page([summary])
    for name in ("verdict", "cluster", "timeline", "plots", "figures", "evidence", "origin"):
        assert f'<section id="{name}"' in html
    assert "loss 20% on n1 from 0.1 s to 0.2 s" in html


def test_an_equal_run_does_not_differ_and_slower_hardware_is_worse(tmp_path: Path) -> None:
    (tmp_path / "slow.toml").write_text('like = "emp-2001"\nreceive = "20us"\n')
    for name, profile in (("a", "emp-2001"), ("b", "emp-2001"), ("slow", tmp_path / "slow.toml")):
        run_command("run", "emp-2001", "pingpong", "--mode", "sim", "--profile", profile, "--set", "count=20",
               "--set", "sizes=4,1500", "--repeat", "2", "--output", tmp_path / name)  # fmt: skip
    assert "12 no difference" in run_command("compare", tmp_path / "a", tmp_path / "b")
    output = run_command("compare", tmp_path / "a", tmp_path / "slow", code=1)
    assert "worse" in output
    assert "differs: profile (emp-2001, slow)" in output
    assert "latency, 4 B" in run_command("compare", tmp_path / "a", "--against", "paper", "--threshold", "50%")


def test_the_time_of_cores_is_reported_by_cause(tmp_path: Path) -> None:
    run_command("run", "lam-via-2000", "pingpong", "--protocol", "via", "--mode", "sim", "--profile", "lam-via-2000",
           "--set", "count=5", "--set", "sizes=4", "--ranks-per-node", "2", "--output", tmp_path / "run")  # fmt: skip
    html = page([summarize_run(tmp_path / "run", "")])
    section = html[html.index("Time of the hosts&#39; cores by cause") :]
    for label in ("n1, core 0", "n1, core 1", "trap", "copy", "agent", "mpi"):
        assert label in section
    assert "reading DMA engine" not in section[: section.index("</table>")]
