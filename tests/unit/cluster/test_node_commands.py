"""Commands of nodes that are no lists."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from testbed.cluster.running_cluster import RunningNode


@pytest.mark.parametrize("method", ["run", "popen"])
@pytest.mark.parametrize(("command", "shell"), [("ping -c1 n2", "'ping -c1 n2'"), ([], r"\[\]")])
def test_a_command_that_is_no_list_is_an_error_at_the_users_line(
    method: str, command: Sequence[str], shell: str
) -> None:
    node = RunningNode.__new__(RunningNode)  # of no cluster: the command is checked first
    with pytest.raises(TypeError, match=f"^a command is a list .*, got {shell}; for a shell: ") as raised:
        getattr(node, method)(command)
    (shown,) = raised.traceback.filter(raised)  # as pytest prints it
    assert Path(shown.path) == Path(__file__)
