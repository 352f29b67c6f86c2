"""User stories of the command line; each command runs as a separate process."""

from __future__ import annotations

import json
import os
import pty
import resource
import select
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from testbed import Cluster
from testbed.cli.documents import schema_of
from testbed.kernel import capabilities, syscalls
from tests.live.testbed_command import TESTBED, assert_error, testbed

pytestmark = [pytest.mark.requires("root"), pytest.mark.usefixtures("machine")]

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def star(machine: object) -> Iterator[None]:  # noqa: ARG001  (checks the machine's state at the end)
    """Bring up a star of four nodes."""
    assert testbed("up", "star-4").returncode == 0
    yield
    testbed("down", "--all")


# End to end


def test_up_exec_status_down_report_their_actions() -> None:
    up = testbed("up", "star-4")
    assert "star-4 is up: 4 nodes, 1 switch, 4 links" in up.stdout
    assert testbed("exec", "n1", "--", "ping", "-c1", "-W2", "n2").returncode == 0
    status = testbed("status")
    assert "n1" in status.stdout
    assert "10.0.0.1 -- s1:1" in status.stdout
    assert testbed("down").stdout == "star-4 is down\n"
    assert "no cluster is up" in testbed("status").stdout


@pytest.mark.usefixtures("star")
def test_up_of_an_unchanged_cluster_does_nothing() -> None:
    assert testbed("up", "star-4").stdout == "star-4 is up as described: nothing to do\n"


def test_a_dry_run_prints_the_plan_and_changes_nothing() -> None:
    plan = testbed("up", "star-2", "--dry-run")
    assert plan.stdout.splitlines()[0] == "make the wire namespace"
    assert "make link n1:eth0--s1:1" in plan.stdout
    assert "no cluster is up" in testbed("status").stdout


@pytest.mark.usefixtures("star")
def test_a_dry_run_of_a_change_prints_only_the_difference(tmp_path: Path) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text(testbed("validate", "--toml", "star-4").stdout)
    assert testbed("up", str(file), "--name", "other").returncode == 0
    file.write_text(file.read_text() + '\n[[node]]\nname = "n5"\n\n[[link]]\nends = ["n5", "s1"]\n')
    plan = testbed("up", str(file), "--name", "other", "--dry-run").stdout.splitlines()
    assert plan == [
        "make node n5",
        "make link n5:eth0--s1:5",
        "add address 10.0.0.5/16 to n5:eth0",
        "set eth0 in n5 up",
    ]


@pytest.mark.usefixtures("star")
def test_the_only_lasting_cluster_is_the_default() -> None:
    with Cluster.star(2).up("another"):
        assert testbed("exec", "n4", "--", "true").returncode == 0
        assert testbed("inject", "n4", "--loss", "1%").returncode == 0
        assert testbed("heal").returncode == 0
        assert testbed("exec", "--name", "another", "n2", "--", "true").returncode == 0


@pytest.mark.usefixtures("star")
def test_with_two_clusters_up_the_name_is_required() -> None:
    assert testbed("up", "star-2", "--name", "second").returncode == 0
    assert_error(testbed("exec", "n1", "--", "true"), 4, "several clusters are up (second, star-4)", "--name")
    assert testbed("exec", "--name", "second", "n1", "--", "true").returncode == 0
    assert testbed("down", "--name", "second").returncode == 0
    assert testbed("exec", "n1", "--", "true").returncode == 0


@pytest.mark.usefixtures("star")
def test_every_json_document_matches_its_schema() -> None:
    for kind, arguments in {
        "status": ["status"],
        "up": ["up", "star-4"],
        "inject": ["inject", "n1", "--delay", "1ms", "--rule", "drop udp"],
        "heal": ["heal"],
        "gc": ["gc"],
        "validate": ["validate", "star-4"],
        "topologies": ["topologies"],
        "graph": ["graph", "ring-4"],
        "doctor": ["doctor"],
        "datapaths": ["doctor", "--datapaths"],
        "down": ["down"],
    }.items():
        printed = json.loads(testbed(*arguments, "--json").stdout)
        jsonschema.validate(printed, schema_of(kind))
        assert json.loads(testbed("schema", kind).stdout) == schema_of(kind)


def test_validation_errors_are_printed_as_json(tmp_path: Path) -> None:
    broken = tmp_path / "broken.toml"
    broken.write_text('name = "x"\n[[node]]\nnome = "n1"\n')
    result = testbed("validate", "--json", str(broken))
    document = json.loads(result.stdout)
    jsonschema.validate(document, schema_of("validate"))
    assert result.returncode == 2
    assert not document["valid"]
    assert any(problem["suggestion"] == "name" for problem in document["problems"])


def test_nics_of_different_mtus_in_one_network_are_a_warning(tmp_path: Path) -> None:
    description = tmp_path / "mtus.toml"
    description.write_text(
        'name = "mtus"\n[[switch]]\nname = "s1"\n[[node]]\nname = "n1"\n[[node]]\nname = "n2"\nnic = [{ mtu = 9000 }]\n'
        '[[link]]\nends = ["n1", "s1"]\n[[link]]\nends = ["n2", "s1"]\n'
    )
    sentence = (
        "the network of switch s1 has NICs of different MTUs, n2:eth0 with 9,000 and n1:eth0 with 1,500 bytes: longer "
        "frames to n1:eth0 are dropped"
    )
    validated = testbed("validate", str(description))
    assert validated.stdout.startswith("mtus is valid")
    for result in (validated, testbed("up", str(description), "--dry-run"), testbed("up", str(description))):
        assert (result.returncode, result.stderr) == (0, f"warning: {sentence}\n")
    for command in ("validate", "up"):
        document = json.loads(testbed(command, str(description), "--json").stdout)
        jsonschema.validate(document, schema_of(command))
        assert document["warnings"] == [sentence]
    assert testbed("down").returncode == 0


def test_graph_prints_dot_or_a_tree() -> None:
    dot = testbed("graph", "--dot", "ring-4").stdout
    assert dot.startswith("graph")
    tree = testbed("graph", "ring-4").stdout
    assert all(name in tree for name in ("n1", "n2", "n3", "n4", "s4", "↑"))


def test_graph_of_long_names_has_a_line_for_each_link_in_any_locale(tmp_path: Path) -> None:
    name = "n" * 60
    (tmp_path / "long.toml").write_text(
        f'node = [{{name = "{name}"}}, {{name = "{name}2"}}]\nlink = [{{ends = ["{name}", "{name}2"]}}]\n'
    )
    drawn = testbed("graph", str(tmp_path / "long.toml"), env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert f"eth0 \\u2014 eth0  {name}2 10." in drawn.stdout, drawn


def test_every_command_has_help() -> None:
    for command in (
        "up",
        "down",
        "gc",
        "status",
        "events",
        "top",
        "inject",
        "link",
        "partition",
        "load",
        "heal",
        "exec",
        "shell",
        "validate",
        "topologies",
        "graph",
        "schema",
        "doctor",
    ):
        shown = testbed(command, "--help")
        assert shown.returncode == 0
        assert shown.stdout.startswith(f"Usage: testbed {command}")


@pytest.fixture
def ten(machine: object) -> Iterator[None]:  # noqa: ARG001  (checks the machine's state at the end)
    """Bring up a star of ten nodes."""
    assert testbed("up", "star-10").returncode == 0
    yield
    testbed("down", "--all")


@pytest.mark.usefixtures("ten")
def test_a_partition_of_many_nodes_leaves_the_status_readable() -> None:
    assert testbed("partition", "n1,n2", "/", "n3,n4,n5,n6,n7,n8,n9,n10").returncode == 0
    status = testbed("status").stdout
    assert "<- rule 'drop eth.src in (02:63:21:8f:a9:13 and 7 more)'" in status
    (link, *_) = json.loads(testbed("status", "--json").stdout)["clusters"][0]["links"]
    assert link["backward"]["impairment"]["rules"][0].count(":") == 8 * 5
    assert "warning: rule 'drop eth.src in (02:63:21:8f:a9:13 and 7 more)' of 1 has" in testbed("heal").stderr


# Programs in nodes: exit code, standard streams, signals, terminal


@pytest.mark.usefixtures("star")
def test_exec_returns_the_programs_exit_code() -> None:
    assert testbed("exec", "n1", "--", "sh", "-c", "exit 42").returncode == 42
    assert testbed("exec", "n1", "--", "nothing").returncode == 127
    assert_error(testbed("exec", "n1", "--", ""), 2, "which program?")


@pytest.mark.usefixtures("star")
def test_standard_input_reaches_the_program() -> None:
    assert testbed("exec", "n1", "--", "tr", "a-z", "A-Z", input="hello\n").stdout == "HELLO\n"


@pytest.mark.usefixtures("star")
def test_options_after_the_node_belong_to_the_program() -> None:
    assert testbed("exec", "n1", "echo", "--name", "-n").stdout == "--name -n\n"


@pytest.mark.usefixtures("star")
def test_a_signal_to_the_command_reaches_the_program() -> None:
    script = "trap 'echo caught; exit 7' TERM; echo ready; while :; do sleep 0.05; done"
    with subprocess.Popen(
        [TESTBED, "exec", "n1", "--", "sh", "-c", script], stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "ready\n"
        running.send_signal(signal.SIGTERM)
        assert running.stdout.readline() == "caught\n"
        assert running.wait(10) == 7


@pytest.mark.usefixtures("star")
def test_a_program_uses_the_terminal_of_exec() -> None:
    master, slave = pty.openpty()
    with subprocess.Popen(
        [TESTBED, "exec", "n1", "--", "sh", "-c", "test -t 0 && tty"], stdin=slave, stdout=slave, stderr=slave
    ) as running:
        assert running.wait(10) == 0
    os.close(slave)
    assert select.select([master], [], [], 5)[0]
    assert b"/dev/pts/" in os.read(master, 1000)
    os.close(master)


@pytest.mark.usefixtures("star")
def test_a_program_with_a_closed_output_pipe_ends_with_sigpipe() -> None:
    with subprocess.Popen([TESTBED, "exec", "n1", "--", "yes"], stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        running.stdout.read(2)
        running.stdout.close()
        assert running.wait(10) == -signal.SIGPIPE


@pytest.mark.usefixtures("star")
@pytest.mark.parametrize("arguments", [("inject", "n1", "--loss", "5%"), ("exec", "n1", "--", "true"), ("status",)])
def test_commands_work_with_closed_standard_streams(arguments: tuple[str, ...]) -> None:
    closed = subprocess.run(["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", TESTBED, *arguments], check=False, timeout=60)
    assert closed.returncode == 0


def test_in_a_removed_working_directory_only_runs_without_output_fail(tmp_path: Path) -> None:
    removed = tmp_path / "removed"
    removed.mkdir()
    run = f"{TESTBED} run star-2 pingpong --mode sim --set sizes=4 --set count=2"
    script = f"""rmdir {removed}
        set -e
        {TESTBED} up star-2
        {TESTBED} exec n1 -- true
        {TESTBED} inject n1 --delay 1ms
        {run} --output {tmp_path}/results
        {TESTBED} down
        {run}"""
    done = subprocess.run(["sh", "-c", script], cwd=removed, capture_output=True, text=True, check=False, timeout=60)
    assert_error(done, 1, "testbed: the working directory was removed")
    assert f"results are in {tmp_path}/results" in done.stdout
    assert "star-2 is down" in done.stdout


def test_node_files_are_readable_for_other_users_despite_a_strict_umask(tmp_path: Path) -> None:
    file = tmp_path / "private.toml"
    file.write_text('[[node]]\nname = "n1"\n[node.files]\n"/etc/app/conf.d/own" = "mine\\n"\n')
    assert testbed("up", str(file), umask=0o077).returncode == 0
    script = "setpriv --reuid=65534 --regid=65534 --clear-groups cat /etc/app/conf.d/own /etc/hosts"
    done = testbed("exec", "n1", "--", "sh", "-c", script, umask=0o077)
    testbed("down", "--all")
    assert done.stdout == "mine\n127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n", done.stderr


@pytest.mark.usefixtures("star")
def test_a_program_under_nohup_outlives_the_terminal() -> None:
    ignored = "trap '' HUP; exec " + TESTBED + " exec n1 -- grep SigIgn /proc/self/status"
    mask = subprocess.run(["sh", "-c", ignored], capture_output=True, text=True, check=True).stdout.split()[1]
    assert int(mask, 16) == 1 << (signal.SIGHUP - 1)


@pytest.mark.usefixtures("star")
def test_a_running_program_keeps_its_file_after_a_change_of_the_description(tmp_path: Path) -> None:
    file = tmp_path / "motd.toml"
    node = '[[node]]\nname = "n1"\n'
    two_files = f'{node}[node.files]\n"/etc/issue" = "one\\n"\n"/etc/motd.own" = "two\\n"\n'
    file.write_text(two_files)
    assert testbed("up", str(file)).returncode == 0
    script = "echo ready; read line; cat /etc/issue"
    with subprocess.Popen(
        [TESTBED, "exec", "--name", "motd", "n1", "--", "sh", "-c", script],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as running:  # fmt: skip
        assert running.stdout is not None
        assert running.stdout.readline() == "ready\n"
        file.write_text(two_files.replace('"/etc/issue" = "one\\n"\n', ""))
        changed = testbed("up", str(file)).stdout
        assert "1 operation" in changed
        assert running.communicate("\n", timeout=10)[0] == "one\n"
    assert testbed("exec", "--name", "motd", "n1", "cat", "/etc/motd.own").stdout == "two\n"
    assert testbed("up", str(file)).stdout == "motd is up as described: nothing to do\n"


@pytest.mark.usefixtures("star")
def test_another_up_keeps_private_directories_and_their_content(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text('[[node]]\nname = "n1"\nprivate_directories = ["/var/lib/own"]\n')
    assert testbed("up", str(file)).returncode == 0
    assert testbed("exec", "--name", "own", "n1", "--", "sh", "-c", "echo kept > /var/lib/own/state").returncode == 0
    file.write_text(file.read_text().replace('"/var/lib/own"', '"/var/lib/own", "/var/lib/other"'))
    assert testbed("up", str(file)).returncode == 0
    assert testbed("exec", "--name", "own", "n1", "cat", "/var/lib/own/state").stdout == "kept\n"
    assert testbed("exec", "--name", "own", "n1", "ls", "/var/lib/other").stdout == ""
    assert not Path("/var/lib/own").exists()


@pytest.mark.usefixtures("star")
def test_a_shell_opens_in_a_node() -> None:
    shell = testbed("shell", "n2", input="hostname\nexit 3\n", env={**os.environ, "SHELL": "/bin/sh"})
    assert shell.stdout == "n2\n"
    assert shell.returncode == 3


@pytest.mark.usefixtures("star")
def test_exec_of_a_missing_program_returns_127() -> None:
    assert_error(testbed("exec", "n1", "--", "no-such-program"), 127, "n1: there is no program no-such-program")


@pytest.mark.usefixtures("star")
def test_exec_of_a_file_that_is_not_executable_returns_126(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("just text")
    assert_error(testbed("exec", "n1", "--", str(tmp_path / "text")), 126, "cannot run", "Permission denied")


# Usage errors


@pytest.mark.usefixtures("star")
def test_exec_on_a_node_that_does_not_exist() -> None:
    assert_error(testbed("exec", "n9", "--", "true"), 4, "cluster star-4 has no node 'n9'; it has n1, n2, n3, n4")


def test_a_misspelt_command_gets_a_suggestion() -> None:
    assert_error(testbed("statsu"), 2, "there is no command 'statsu'", "did you mean 'status'?")
    assert_error(testbed("ls"), 2, "there is no command 'ls'; 'testbed status' shows the clusters that are up")


def test_a_misspelt_topology_gets_a_suggestion() -> None:
    assert_error(testbed("up", "fat-tre-4"), 4, "did you mean 'fat-tree-4'?")


@pytest.mark.parametrize("name", ["../x", "a/b", ".", "..", "", "a b", "x" * 300, "-x", "a\nb"])
def test_cluster_names_that_are_no_plain_file_names_are_rejected(name: str) -> None:
    for command in (["up", "star-2"], ["down"], ["status"], ["exec", "n1", "true"]):
        result = testbed(command[0], f"--name={name}", *command[1:])
        assert_error(result, 2, "the cluster's name", "expected 1 to 63 letters")


@pytest.mark.usefixtures("star")
def test_an_operation_of_more_than_a_second_is_shown() -> None:
    script = "trap '' TERM; echo ready; while :; do sleep 0.05; done"
    with subprocess.Popen(
        [TESTBED, "exec", "n1", "--", "sh", "-c", script], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        down = testbed("down", "--grace", "1.5")
        assert down.stderr == "taking down star-4 ...\n"
        assert down.stdout == "star-4 is down\n"
        assert process.wait(10) == -signal.SIGKILL


@pytest.mark.usefixtures("star")
def test_an_option_after_the_node_is_refused_with_its_correct_position() -> None:
    assert_error(testbed("exec", "n1", "--name", "star-4", "true"), 2, "options of exec go before it")


@pytest.mark.usefixtures("star")
def test_one_unreadable_state_does_not_hide_the_other_clusters() -> None:
    assert testbed("up", "star-2", "--name", "second").returncode == 0
    Path("/run/netns-testbed/second/state.json").write_text("garbage")
    shown = testbed("status")
    assert_error(shown, 1, "second/state.json cannot be understood")
    assert "star-4 (topology:star-4)" in shown.stdout
    assert testbed("down", "--name", "second").returncode == 0


@pytest.mark.usefixtures("star")
@pytest.mark.parametrize("seconds", ["nan", "inf", "-1", "3000000"])
def test_an_invalid_grace_time_is_rejected(seconds: str) -> None:
    assert_error(testbed("down", "--grace", seconds), 2, "not in the range 0 to 86,400 seconds")


def test_down_without_a_cluster_is_an_error() -> None:
    assert_error(testbed("down"), 4, "no cluster is up")
    assert_error(testbed("down", "--name", "ghost"), 4, "no cluster is named ghost; none is up")


def test_a_kernel_datapath_for_a_modelled_switch_is_rejected() -> None:
    assert_error(testbed("up", "now-1998", "--datapath", "netem"), 3, "links of kind myrinet are in the relay")


@pytest.mark.parametrize("options", [(), ("--dry-run",)])
def test_up_rejects_a_datapath_that_the_kernel_lacks_before_anything_is_made(options: tuple[str, ...]) -> None:
    """On a machine with netem, the test checks that the cluster comes up instead."""
    result = testbed("up", "star-2", "--datapath", "netem", *options)
    if capabilities.probe_capabilities().netem:
        assert result.returncode == 0
        testbed("down", "--all")
        return
    assert_error(
        result, 3, "'--datapath netem' is not possible: this kernel has no netem", "'testbed doctor' shows how"
    )
    assert "no cluster is up" in testbed("status").stdout


def test_declared_impairments_are_in_force_unless_excluded() -> None:
    up = testbed("up", "emp-2001", "--datapath", "relay")
    assert up.returncode == 0
    assert "by relay: n1:eth0--n2:eth0" in up.stdout
    (link,) = links()
    assert link["datapath"] == "relay"
    assert link["forward"]["impairment"]["rate"] == 10**9
    assert testbed("up", "emp-2001", "--unimpaired").returncode == 0
    (link,) = links()
    assert (link["datapath"], link["forward"]["impairment"]) == ("direct", {})
    assert testbed("down").returncode == 0


def links() -> list[dict[str, Any]]:
    (cluster,) = json.loads(testbed("status", "--json").stdout)["clusters"]
    status_of_links: list[dict[str, Any]] = cluster["links"]
    return status_of_links


# Faults: injections, their effects, and rejected commands


@pytest.mark.usefixtures("star")
def test_inject_reports_its_changes_and_the_round_trip_and_heal_removes_them() -> None:
    result = testbed("inject", "n1", "--loss", "5%", "--delay", "2ms")
    assert result.stdout.startswith("1: delay 2ms, loss 5% on n1 (1 link: 1 by ")
    assert "a round trip n1 - n2 now sees: delay 4ms, loss 9.75%" in result.stdout
    shown = testbed("status").stdout
    assert "delay 2ms, loss 5%" in shown
    assert "injected 1: delay 2ms, loss 5% on n1" in shown
    one_direction = testbed("inject", "n2--s1", "--rate", "100mbit", "--direction", "n2-s1")
    assert one_direction.returncode == 0
    forward, backward = (links()[1][direction]["impairment"] for direction in ("forward", "backward"))
    assert (forward, backward) == ({"rate": 10**8}, {})
    two_nodes = testbed("inject", "n3", "n4", "--loss", "1%", "--direction", "out")
    assert two_nodes.stdout.startswith("3: loss 1% on n3, n4 (out) (2 links: 2 by ")
    losses = [[link[direction]["impairment"] for direction in ("forward", "backward")] for link in links()[2:]]
    assert losses == [[{"loss": 0.01}, {}]] * 2
    assert testbed("heal", "1").stdout == "healed 1: delay 2ms, loss 5% on n1\n"
    assert testbed("heal").stdout == "healed 2: rate 100mbit on n2--s1 (n2-s1)\nhealed 3: loss 1% on n3, n4 (out)\n"
    assert testbed("heal").stdout == "nothing was injected\n"
    assert {link["datapath"] for link in links()} == {"direct"}
    event_names = [line.split()[1] for line in testbed("events").stdout.splitlines()]
    assert [event for event in event_names if event in ("inject:", "heal:")] == ["inject:"] * 3 + ["heal:"] * 3


REJECTED: list[tuple[tuple[str, ...], int, list[str]]] = [
    (("inject", "n9", "--loss", "1%"), 4, ["no link, node or switch 'n9'", "n1:eth0--s1:1"]),
    (("inject", "n1--s2", "--loss", "1%"), 4, ["no link, node or switch 'n1--s2'", "did you mean 'n1--s1'?"]),
    (("inject", "n1", "--loss", "1%", "--direction", "n1-n2"), 4, ["no direction 'n1-n2'", "'n1-s1'"]),
    (("inject", "n1"), 2, ["nothing to inject"]),
    (("inject", "n1", "--loss", "5"), 2, ["loss", "'5'"]),
    (("inject", "n1", "--reorder", "5%"), 2, ["reorder without a delay"]),
    (("inject", "n1", "--queue", "0"), 2, ["queue", "above 0"]),
    (("inject", "n1", "--delay", "1ms", "--distribution", "normal"), 2, ["a distribution without jitter"]),
    (("inject", "n1", "--rule", "drop tcp.dprot == 1"), 2, ["column 6", "did you mean 'tcp.dport'?", "^^^^^^^^^"]),
    (("inject", "n1", "--rate-trace", "/nowhere/at/all"), 4, ["/nowhere/at/all", "No such file"]),
    (("inject", "n1", "--loss", "1%", "--for", "soon"), 2, ["--for", "soon"]),
    (("link", "n1", "up", "--for", "1s"), 2, ["--for goes with"]),
    (("partition", "n1,n2"), 2, ["two groups of nodes or more"]),
    (("partition", "n1,n2", "/", "n2"), 2, ["n2 twice"]),
    (("partition", "n1", "/", "n7"), 4, ["no node 'n7'"]),
    (("load", "n1"), 2, ["--cpu or --rate"]),
    (("load", "n1", "--rate", "1mbit"), 2, ["the receiver"]),
    (("load", "n1", "n1", "--rate", "1mbit"), 2, ["n1 to itself"]),
    (("load", "n1", "--cpu", "much"), 2, ["'much'"]),
    (("heal", "7"), 4, ["no injection 7"]),
]


@pytest.mark.usefixtures("star")
def test_impossible_faults_are_rejected() -> None:
    """One cluster serves all cases, because a rejected command leaves it unchanged."""
    for arguments, code, words in REJECTED:
        assert_error(testbed(*arguments), code, *words)
    assert testbed("heal").stdout == "nothing was injected\n"


def test_a_malformed_trace_is_reported_with_its_line(tmp_path: Path, machine: object) -> None:  # noqa: ARG001
    (tmp_path / "trace").write_text("0\n1\nthree\n")
    (tmp_path / "mine.toml").write_text(
        NODES + '[[link]]\nends = ["a", "s"]\nrate_trace = "trace"\n[[link]]\nends = ["b", "s"]\n'
    )
    assert_error(testbed("up", str(tmp_path / "mine.toml")), 2, "trace", "3", "three")


def test_an_impairment_that_the_datapath_cannot_implement_is_rejected_with_the_reason(machine: object) -> None:  # noqa: ARG001
    assert testbed("up", "star-4", "--datapath", "tc").returncode == 0
    result = testbed("inject", "n1", "--delay", "1ms")
    assert_error(result, 3, "n1:eth0--s1:1", "the datapath 'tc' cannot carry this", "it cannot delay frames")
    assert testbed("down").returncode == 0


def test_injection_into_a_link_declared_direct_is_rejected_with_that_reason(tmp_path: Path, machine: object) -> None:  # noqa: ARG001
    (tmp_path / "mine.toml").write_text(
        '[[node]]\nname = "a"\n[[node]]\nname = "b"\n[[link]]\nends = ["a", "b"]\ndatapath = "direct"\n'
    )
    assert testbed("up", str(tmp_path / "mine.toml")).returncode == 0
    assert_error(testbed("inject", "a", "--loss", "1%"), 3, 'declared datapath = "direct"')
    assert_error(testbed("link", "a", "down"), 3, 'declared datapath = "direct"')
    assert testbed("down").returncode == 0


# Invalid files: an error with the position and the reason, and an unchanged machine

NODES = '[[node]]\nname = "a"\n[[node]]\nname = "b"\n[[switch]]\nname = "s"\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('name = "x"\nspeed = 3\n' + NODES, ["speed", "unknown key"]),
        (NODES + '[[link]]\nends = ["a", "s"]\ndealy = "1ms"\n', ["dealy", "did you mean 'delay'?"]),
        (NODES + '[[link]]\nends = ["a", "s"]\ndelay = "10 parsecs"\n', ["delay", "10 parsecs"]),
        (NODES + '[[link]]\nends = ["a", "s"]\nrate = "-5mbit"\n', ["rate", "-5mbit"]),
        (NODES + '[[link]]\nends = ["a", "s"]\nrate = "nan"\n', ["rate", "nan"]),
        (NODES + '[[link]]\nends = ["a", "s"]\nrate = nan\n', ["rate", "nan"]),
        (NODES + '[[link]]\nends = ["a", "s"]\nloss = "101%"\n', ["loss", "101%"]),
        (NODES + '[[link]]\nends = ["a", "zz"]\n', ["zz"]),
        (NODES + '[[node]]\nname = "a"\n', ["'a'"]),
        (NODES + '[[link]]\nends = ["a", "s:1"]\n[[link]]\nends = ["b", "s:1"]\n', ["s:1"]),
        (
            '[[node]]\nname = "a"\n[[node.nic]]\naddresses = ["10.0.0.5/16"]\n'
            '[[node]]\nname = "b"\n[[node.nic]]\naddresses = ["10.0.0.5/16"]\n'
            '[[link]]\nends = ["a", "b"]\n',
            ["10.0.0.5"],
        ),
        ('[[node]]\nname = "a/b"\n', ["a/b"]),
        ('[[node]]\nname = ".."\n', [".."]),
        ('[[node]]\nname = "a b"\n', ["a b"]),
        (f'[[node]]\nname = "{"n" * 300}"\n', ["nnnn", "63"]),
        ("", ["node"]),
        ("[[node\n", ["line 1"]),
    ],
    ids=[
        "unknown key", "misspelt key", "wrong unit", "negative rate", "NaN as text", "NaN as number", "loss of 101 %",
        "unknown node", "duplicate name", "two links on one port", "overlapping addresses", "slash", "dots", "space",
        "300 characters", "empty file", "not TOML",
    ],
)  # fmt: skip
def test_an_invalid_file_is_rejected_with_the_error_position(tmp_path: Path, text: str, words: list[str]) -> None:
    file = tmp_path / "bad.toml"
    file.write_text(text)
    assert_error(testbed("up", str(file)), 2, "bad.toml", *words)


def test_all_errors_are_reported_together(tmp_path: Path) -> None:
    file = tmp_path / "bad.toml"
    file.write_text(NODES + '[[link]]\nends = ["a", "zz"]\ndealy = "1ms"\n[[link]]\nends = ["b", "s"]\nloss = 7\n')
    assert_error(testbed("up", str(file)), 2, "zz", "dealy", "loss", "3 problems")


def test_a_file_of_10_megabytes_is_rejected(tmp_path: Path) -> None:
    file = tmp_path / "big.toml"
    file.write_bytes(b"# padding\n" * 1_000_000)
    assert_error(testbed("up", str(file)), 2, "big.toml", "MiB")


def test_a_directory_as_description_is_rejected(tmp_path: Path) -> None:
    assert_error(testbed("up", str(tmp_path)), 2, "directory")


def test_a_missing_file_is_reported() -> None:
    assert_error(testbed("up", "./nowhere.toml"), 4, "nowhere.toml")


def test_invalid_utf8_is_rejected_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "latin1.toml"
    file.write_bytes(b'name = "x"\n# caf\xe9\n')
    assert_error(testbed("up", str(file)), 2, "line 2", "UTF-8")


def test_a_switch_of_more_than_1023_ports_is_rejected() -> None:
    assert_error(testbed("up", "star-1024"), 2, "1,023")


# Conflicts and exhausted resources of the machine


@pytest.mark.usefixtures("star")
def test_a_cluster_from_another_file_is_replaced_only_on_request(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('name = "star-4"\n[[node]]\nname = "alone"\n')
    assert_error(testbed("up", str(file)), 5, "topology:star-4", str(file), "--replace")
    assert testbed("exec", "n1", "--", "true").returncode == 0
    plan = testbed("up", str(file), "--replace", "--dry-run")
    assert plan.stdout == "make the wire namespace\nmake node alone\n"
    assert testbed("exec", "n1", "--", "true").returncode == 0
    assert testbed("up", str(file), "--replace").returncode == 0
    assert testbed("exec", "alone", "--", "true").returncode == 0


def test_a_foreign_namespace_with_a_nodes_name_is_kept() -> None:
    subprocess.run(["ip", "netns", "add", "star-4.n2"], check=True)
    try:
        assert_error(testbed("up", "star-4"), 5, "star-4.n2 exists already", "left alone", "--name")
        assert Path("/run/netns/star-4.n2").exists()
        assert not Path("/run/netns/star-4.n1").exists()
    finally:
        subprocess.run(["ip", "netns", "del", "star-4.n2"], check=True)
        syscalls.umount("/run/netns")  # mounted by ip, which leaves it
        Path("/run/netns").rmdir()


def test_up_without_enough_file_descriptors_leaves_nothing() -> None:
    def limit_36() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (36, 36))

    def limit_30() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (30, 30))

    assert_error(testbed("up", "star-16", preexec_fn=limit_36), 7, "no file descriptors are left", "ulimit")
    assert_error(testbed("up", "star-16", preexec_fn=limit_30), 3, "need 34 open files", "ulimit -Hn")


def test_a_read_only_run_directory_is_reported() -> None:
    def read_only() -> None:
        syscalls.unshare(syscalls.CLONE_NEWNS)
        syscalls.mount("none", "/", flags=syscalls.MS_REC | syscalls.MS_PRIVATE)
        syscalls.mount("none", "/run", "tmpfs", syscalls.MS_RDONLY)

    assert_error(testbed("up", "star-2", preexec_fn=read_only), 6, "/run is read-only")


def test_an_interrupted_up_leaves_nothing() -> None:
    with subprocess.Popen([TESTBED, "up", "star-500"], stderr=subprocess.PIPE, text=True) as running:
        while not Path("/run/netns/star-500.n20").exists():
            assert running.poll() is None, "up ended before the interruption"
        running.send_signal(signal.SIGINT)
        assert running.stderr is not None
        assert "interrupted" in running.stderr.read()
        assert running.wait(30) == 130


def test_an_up_interrupted_several_times_leaves_nothing() -> None:
    with subprocess.Popen([TESTBED, "up", "star-500"], stderr=subprocess.DEVNULL) as running:
        while not Path("/run/netns/star-500.n20").exists():
            assert running.poll() is None, "up ended before the interruption"
        for _ in range(3):
            running.send_signal(signal.SIGINT)
        assert running.wait(30) in (130, -signal.SIGINT)


def test_a_terminated_up_leaves_nothing() -> None:
    with subprocess.Popen([TESTBED, "up", "star-500"]) as running:
        while not Path("/run/netns/star-500.n20").exists():
            assert running.poll() is None, "up ended before the termination"
        running.terminate()
        assert running.wait(30) == 128 + signal.SIGTERM
