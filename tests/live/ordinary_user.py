"""Run a function as an ordinary user, in a child process that gives up being root.

The child is forked after all modules that it uses are imported: an ordinary user may not be able to read the interpreter's
and the packages' files. A failed assertion becomes its exit code, with a traceback on standard error.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from testbed.kernel import syscalls
from testbed.kernel.userns import is_root

_NEEDED = (
    "termios",
    "testbed.cluster.startup",
    "testbed.cluster.plan.datapath_choice",
    "testbed.cluster.plan.link_decisions",
    "testbed.cluster.plan.disciplines",
    "testbed.cluster.services.namespace_holder",
    "testbed.cluster.lifecycle",
    "testbed.cluster.records.status",
    "testbed.cluster.services.supervisor",
    "testbed.kernel.capabilities",
    "testbed.kernel.loss_classifier",
    "testbed.kernel.netlink_messages",
    "testbed.kernel.qdiscs",
    "testbed.spec.layout_json",
    "testbed.spec.model",
)
"""Modules that a child uses and cannot read after it has dropped its privileges."""


NOBODY = 65533  # in no group and with no files, on any machine


def as_user(home: Path, function: Callable[[], None]) -> int:
    """Start `function` as the ordinary user in a child process; return its pid."""
    for module in _NEEDED:
        import_module(module)
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        # A process that was root cannot read its /proc/self until it is made dumpable again.
        assert syscalls._libc.prctl(4, 1, 0, 0, 0) == 0  # PR_SET_DUMPABLE
        os.environ["XDG_RUNTIME_DIR"] = str(home)
        os.chdir("/")
        assert not is_root()
        function()
        status = 0
    except BaseException:  # noqa: BLE001  the child must not continue the test run
        traceback.print_exc(file=sys.__stderr__)
    finally:
        os._exit(status)


def wait_for_success(child: int) -> None:
    """Wait for a child that must succeed."""
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
