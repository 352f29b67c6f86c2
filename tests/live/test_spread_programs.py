"""Programs in nodes on another machine: standard streams, exit codes, terminals."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.machine_state import eventually
from tests.live.machines_lab import Lab, lab
from tests.live.testbed_command import TESTBED, assert_error

pytestmark = [pytest.mark.requires("root", "ip", "ssh", "sshd")]

STAR = 'name = "star"\ndefaults = { mtu = 1400 }\ngenerate = { shape = "star", nodes = 2 }\n'
EXEC = ("machines", "exec", "lab.toml", "star")
LARGE_INPUT = bytes(range(256)) * 4096  # more than all buffers hold


@pytest.fixture(scope="module")
def machines(_sandbox: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Bring up a cluster of two nodes on one machine."""
    folder = tmp_path_factory.mktemp("lab")
    with lab(folder, names=("a",)) as running_lab:
        (folder / "star.toml").write_text(STAR)
        assert running_lab.testbed("machines", "up", "lab.toml", "star.toml").returncode == 0
        yield running_lab
        assert running_lab.testbed("machines", "down", "lab.toml", "star").returncode == 0


def run_with_input(machines: Lab, data: bytes, output: Path, *command: str) -> int:
    """Run a program in node n1 with this input and its output in a file; return the exit code."""
    input_file = output.with_suffix(".in")
    input_file.write_bytes(data)
    with (
        input_file.open("rb") as source,
        output.open("wb") as sink,
        machines.at_desk(TESTBED, *EXEC, "n1", "--", *command, stdin=source.fileno(), stdout=sink.fileno()) as process,
    ):
        process.communicate(timeout=60)
    return int(process.returncode)


def test_arbitrary_bytes_pass_through_standard_streams(machines: Lab, tmp_path: Path) -> None:
    assert run_with_input(machines, LARGE_INPUT, tmp_path / "out", "cat") == 0
    assert (tmp_path / "out").read_bytes() == LARGE_INPUT


def test_a_program_that_ignores_its_input_can_end(machines: Lab, tmp_path: Path) -> None:
    assert run_with_input(machines, LARGE_INPUT, tmp_path / "out", "sh", "-c", "echo no; exit 5") == 5
    assert (tmp_path / "out").read_text() == "no\n"


def test_a_killed_and_a_missing_program_have_their_exit_codes(machines: Lab) -> None:
    killed = machines.testbed(*EXEC, "n1", "--", "sh", "-c", "kill -9 $$")
    assert (killed.returncode, killed.stdout, killed.stderr) == (128 + 9, "", "")
    assert_error(machines.testbed(*EXEC, "n1", "--", "no-such-program"), 4, "there is no program", "no-such-program")
    assert_error(machines.testbed(*EXEC, "n7", "--", "true"), 4, "cluster star has no node 'n7'")


def test_output_is_unbuffered_and_the_program_ends_with_the_command(machines: Lab) -> None:
    with machines.at_desk(
        TESTBED, *EXEC, "n1", "--", "sh", "-c", "echo here; exec cat", stdin=os.open("/dev/zero", 0)
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        assert any("cat" in line for line in machines.programs("a"))
        process.kill()
    eventually(lambda: not any("cat" in line for line in machines.programs("a")), "the program has ended", 30)


def test_a_shell_has_a_terminal_of_the_same_size(machines: Lab) -> None:
    controlling, terminal = pty.openpty()
    try:
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 77, 0, 0))
        streams = dict.fromkeys(("stdin", "stdout", "stderr"), terminal)
        with machines.at_desk(TESTBED, "machines", "shell", "lab.toml", "star", "n2", **streams) as shell:
            os.close(terminal)
            os.write(controlling, b"stty size; echo $TESTBED_NODE-$debian_chroot; exit 7\n")
            printed = b""
            while b"n2-n2\r\n" not in printed:
                assert select.select([controlling], [], [], 30)[0], printed
                printed += os.read(controlling, 4096)
            assert shell.wait(60) == 7
        assert b"33 77\r\n" in printed
    finally:
        os.close(controlling)
