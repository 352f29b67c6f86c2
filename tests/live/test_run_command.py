"""User stories of ``testbed run`` and ``testbed runs``."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from pathlib import Path

import jsonschema
import pytest

from testbed import Cluster
from testbed.cli.documents import schema_of
from testbed.controller.runs import running_commands
from testbed.controller.runs.command_runs import run_commands
from testbed.observe.recorded import read_run
from tests.live.testbed_command import TESTBED, assert_error
from tests.live.testbed_command import testbed as command

pytestmark = [pytest.mark.requires("root"), pytest.mark.usefixtures("machine")]

TIMEOUT = 30.0  # s
SMALL = ("--set", "count=5", "--set", "sizes=0,4")


def no_cluster_is_up() -> bool:
    return not json.loads(command("status", "--json").stdout)["clusters"]


def test_a_run_prints_table_verdict_and_folder_and_is_listed_by_runs(tmp_path: Path) -> None:
    run = command("run", "star-4", "pingpong", *SMALL, cwd=tmp_path)
    assert run.returncode in (0, 8), run.stderr
    assert run.stdout.splitlines()[0].split()[:4] == ["node", "size", "count", "min"]
    assert "verdict: " in run.stdout
    (folder,) = (tmp_path / "results" / "runs").iterdir()
    assert f"results are in results/runs/{folder.name}" in run.stdout
    assert folder.name.endswith("-star-4-pingpong")
    assert "pingpong" in command("runs", cwd=tmp_path).stdout
    shown = command("runs", str(folder), cwd=tmp_path).stdout
    assert "done" in shown
    assert "0 B" in shown
    assert no_cluster_is_up()


def test_documents_match_the_schema(tmp_path: Path) -> None:
    run = command("run", "star-4", "random", "--mode", "sim", "--set", "messages=5", "--json", cwd=tmp_path)
    document = json.loads(run.stdout)
    jsonschema.validate(document, schema_of("run"))
    assert [row["sent"] for row in document["rows"]] == [5] * 4
    jsonschema.validate(json.loads(command("runs", "--json", cwd=tmp_path).stdout), schema_of("runs"))
    workloads = json.loads(command("runs", "--workloads", "--json").stdout)
    jsonschema.validate(workloads, schema_of("workloads"))
    assert [workload for workload in workloads["workloads"].values() if workload["summary"][-1] != "."] == []


def test_a_users_workload_runs_on_a_running_cluster_which_stays_up(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "async def hello(comm, node, *, times: int = 1):\n"
        "    for _ in range(times):\n"
        "        await node.barrier()\n"
        "    node.row(times=times)\n"
    )
    assert command("up", "star-4").returncode == 0
    try:
        run = command("run", "star-4", "./own.py:hello", "--set", "times=3", "--json", cwd=tmp_path)
        assert [row["times"] for row in json.loads(run.stdout)["rows"]] == [3] * 4
        assert not no_cluster_is_up()
    finally:
        command("down", "--all")


def test_usage_errors_are_reported_with_exit_codes(tmp_path: Path) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return command("run", *arguments, cwd=tmp_path)

    (tmp_path / "raises.py").write_text("raise RuntimeError('at import')\n")
    assert_error(run("star-4"), 2, "give either a workload or commands")
    assert_error(run("star-4", "pingpnog"), 4, "no workload is called 'pingpnog'", "did you mean 'pingpong'?")
    assert_error(run("star-4", "pingpong", "--set", "cuont=1"), 2, "unknown setting 'cuont'", "did you mean 'count'?")
    assert_error(run("star-4", "pingpong", "--protocol", "epm"), 4, "no protocol is called 'epm'")
    assert_error(run("star-4", "pingpong", "--protocol", "tcp", "--mode", "sim"), 3, "tcp is a kernel protocol")
    assert_error(run("sta-4", "pingpong"), 4, "sta-4")
    assert_error(
        run("star-4", "pingpong", "--mode", "sim", "--repeat", "9" * 30), 2, "repeat: found 999", "1 to 1,000,000"
    )
    assert_error(run("star-4", "--mode", "sim", "--on", "n1", "true"), 3, "commands run in namespaces")
    assert_error(run("star-4", "--on", "n9", "true"), 4, "has no node 'n9'")
    raised = run("star-4", "./raises.py")
    assert (raised.returncode, "at import" in raised.stderr) == (1, True)
    assert no_cluster_is_up()


def test_commands_run_on_their_nodes_and_a_client_starts_after_its_server(tmp_path: Path) -> None:
    server = "python3 -c 'import socket; s = socket.create_server((\"\", 99)); print(s.accept()[0].recv(9).decode())'"
    client = 'python3 -c \'import socket; socket.create_connection(("n1", 99)).send(b"hello")\''
    run = command("run", "star-4", "--on", "n1", server, "--on", "n2", client, "--output", "out", cwd=tmp_path)
    assert run.returncode in (0, 8), run.stderr
    assert (tmp_path / "out" / "logs" / "n1.log").read_text() == "hello\n"
    assert "  hello" in run.stdout
    assert [row["code"] for row in map(json.loads, (tmp_path / "out" / "rows.jsonl").read_text().splitlines())] == [
        0,
        0,
    ]


def test_a_client_waits_for_all_servers_to_listen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running_commands, "LISTEN_TIMEOUT", TIMEOUT)  # long enough for a busy machine
    server = "python3 -c 'import socket; socket.create_server((\"\", {port})).accept()'"
    clients = "python3 -c 'import socket; [socket.create_connection((\"n1\", port)) for port in (99, 98)]'"
    commands = [("n1", server.format(port=98)), ("n1", f"sleep 0.2; {server.format(port=99)}"), ("n2", clients)]
    assert [done.code for done in run_commands(Cluster.star(2), commands).commands] == [0, 0, 0]


def test_a_failed_command_ends_the_others_and_a_timeout_kills_the_rest(tmp_path: Path) -> None:
    before = time.monotonic()
    run = command(
        "run", "star-4", "--on", "n1", "sleep 600 & sleep 600", "--on", "n2", "echo reason; exit 3", cwd=tmp_path
    )
    assert_error(
        run, 1, "n2: echo reason; exit 3 ended with code 3", "reason", "the results so far are in results/runs/"
    )
    run = command("run", "star-4", "--timeout", "0.5", "--on", "n1", "sleep 600", cwd=tmp_path)
    assert_error(run, 1, "commands did not end within 0.5 s and were killed: n1: sleep 600")
    assert time.monotonic() - before < TIMEOUT
    assert no_cluster_is_up()


@pytest.mark.parametrize("mode", ["sim", "live"])
@pytest.mark.parametrize("event", ["run.json", "rows.jsonl", "logs"])
def test_an_interrupted_run_keeps_its_measurements_and_leaves_no_cluster(tmp_path: Path, mode: str, event: str) -> None:
    """Interrupt as soon as the file, the folder or (rows.jsonl) the first row exists."""
    (tmp_path / "endless.py").write_text(
        "async def endless(comm, node):\n"
        "    node.row(measured=1)\n"
        "    while True:\n"
        "        await node.sleep(1_000_000)\n"
    )
    process = subprocess.Popen(
        [TESTBED, "run", "star-4", "./endless.py", "--mode", mode, "--output", "out", "--timeout", "1000"],
        cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    expected, deadline = tmp_path / "out" / event, time.monotonic() + TIMEOUT
    while not expected.exists() or (event == "rows.jsonl" and not expected.stat().st_size):
        assert process.poll() is None, process.stderr and process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.001)  # between two samples
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 130
    assert "Traceback" not in errors
    status = read_run(tmp_path / "out").status
    assert status == "interrupted" or (event == "run.json" and status == "unfinished")  # not started yet
    assert no_cluster_is_up()


def test_all_stacks_in_both_modes_share_a_table_and_a_report_and_have_a_verdict_each(tmp_path: Path) -> None:
    """The tables of protocols with different columns are merged."""
    nics, sockets = ("emp", "am2", "ssam", "via", "openmx"), ("tcp", "udp")
    stacks = ("--protocol", ",".join(nics + sockets), "--mode", "sim,live", "--output", str(tmp_path / "run"))
    run = command("run", "star-2", "pingpong", *SMALL, *stacks)
    assert run.returncode in (0, 8), run.stderr
    lines = [line.split() for line in run.stdout.splitlines()]
    made = [*[[nic, mode] for nic in nics for mode in ("sim", "live")], *[[protocol, "live"] for protocol in sockets]]
    rows, verdicts = lines[1 : 2 * len(made) + 1], lines[2 * len(made) + 2 :]
    assert [line[:2] for line in rows] == [member for member in made for _ in range(2)]  # two sizes
    assert "asked again" in run.stdout.splitlines()[0]
    assert lines[2 * len(made) + 1] == ["protocol", "mode", "verdict"]
    assert [line[:2] for line in verdicts[:14]] == [[name, mode] for name in nics + sockets for mode in ("sim", "live")]
    refused = [line for line in verdicts[:14] if line[2:4] == ["not", "run:"]]
    assert [line[:2] for line in refused] == [[protocol, "sim"] for protocol in sockets]
    assert all(line in refused or line[2:] in (["trusted"], ["degraded"]) for line in verdicts[:14])
    page = (tmp_path / "run" / "report.html").read_text()
    assert re.findall(r'<h3 id="run-\d+"><span class="label[^>]*>(\w+) (\w+)</span>', page) == [
        tuple(member) for member in made
    ]
    assert page.count('id="percentiles-title"') == 1
    assert no_cluster_is_up()
