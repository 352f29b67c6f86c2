"""Output whose reader ends early, as in ``testbed topologies | head -1``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest


@pytest.mark.parametrize("arguments", ["topologies", "topologies --help", "--help", "unknown"])
def test_the_command_exits_as_a_program_that_sigpipe_ends(arguments: str) -> None:
    """click prints the help of the whole command, that of a sub-command and an error in three different places."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-c", "from testbed.cli.entry import main; main()", *arguments.split()]
    ended = subprocess.run(command, stdout=writer, stderr=writer, check=False)
    os.close(writer)
    assert ended.returncode == 128 + signal.SIGPIPE


def test_a_table_leaves_a_closed_pipe_to_the_command() -> None:
    """Rich by itself exits with 1."""
    reader, writer = os.pipe()
    os.close(reader)
    program = "import os\nfrom testbed.cli.table_layout import print_table\n"
    program += "try:\n    print_table(['a'], [['b']])\nexcept BrokenPipeError:\n    os._exit(7)"
    ended = subprocess.run([sys.executable, "-c", program], stdout=writer, check=False)
    os.close(writer)
    assert ended.returncode == 7
