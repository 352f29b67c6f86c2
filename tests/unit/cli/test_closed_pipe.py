"""Output to a closed pipe, as in ``testbed topologies | head -1``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest


@pytest.mark.parametrize("arguments", ["topologies", "topologies --help", "--help", "unknown"])
def test_the_command_exits_as_if_killed_by_sigpipe(arguments: str) -> None:
    """click prints help of the command, help of a subcommand and errors in different places."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-c", "from testbed.cli.entry import main; main()", *arguments.split()]
    completed = subprocess.run(command, stdout=writer, stderr=writer, check=False)
    os.close(writer)
    assert completed.returncode == 128 + signal.SIGPIPE


def test_printing_a_table_raises_broken_pipe_error() -> None:
    """Rich would exit with 1."""
    reader, writer = os.pipe()
    os.close(reader)
    program = "import os\nfrom testbed.cli.table_layout import print_table\n"
    program += "try:\n    print_table(['a'], [['b']])\nexcept BrokenPipeError:\n    os._exit(7)"
    completed = subprocess.run([sys.executable, "-c", program], stdout=writer, check=False)
    os.close(writer)
    assert completed.returncode == 7
