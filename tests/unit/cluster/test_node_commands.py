"""Commands of nodes that are no lists, and programs that cannot be executed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from testbed.cluster.access import node_programs
from testbed.cluster.running_cluster import RunningNode
from testbed.errors import TestbedError
from testbed.kernel.setns import NodeContext


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


def test_a_file_that_the_kernel_cannot_execute_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "script"
    script.write_text("echo no interpreter is named\n")
    script.chmod(0o755)
    monkeypatch.setattr(node_programs, "enter", lambda _: None)
    with pytest.raises(TestbedError, match=r"^n1: .*/script cannot be run: Exec format error$"):
        node_programs.start(NodeContext("", "n1", ""), [str(script)])
