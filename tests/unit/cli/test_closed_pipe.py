"""Output that nobody reads to its end, as in ``testbed topologies | head -1``."""

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
