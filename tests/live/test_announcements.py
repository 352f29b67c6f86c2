"""Every state-changing system call is announced: strace's record of a cluster from `up` to `down` equals the announcements.

Otherwise the tests of kill points would cover only the changes that their authors thought of.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.machine_state import Machine

# Bring a cluster up, change it, take it down; print the changes announced between two marks (system calls that fail).
_SCRIPT = """
import os, sys
from contextlib import suppress

from testbed.cluster import removal
from testbed.cluster.startup import bring_up
from testbed.cluster.running_cluster import RunningCluster
from testbed.cluster.records.state import Store
from testbed.kernel.changes import observed_by
from testbed.spec.model import Description, Link, Node
from testbed.spec.resolver import resolve

lasting = sys.argv[1] == "lasting"
with_file = Node(name="n1", files={"/etc/motd": "hello"})
one = Description(name="one", nodes=[with_file, Node(name="n2")], links=[Link(ends=["n1", "n2"])])
layouts = [resolve(one), resolve(Description.star(4)), resolve(Description.ring(3))]

def mark(name):
    with suppress(FileNotFoundError):
        os.mkdir(f"/nowhere/{name}")

changes = []
with observed_by(changes.append):
    mark("begin")
    for layout in layouts if lasting else layouts[:1]:
        outcome = bring_up(Store(), layout, name="traced", origin="test", lasting=lasting)
    mark("pause")
    before_program = len(changes)
    sleeper = RunningCluster(Store(), outcome.state)["n1"].popen(["sleep", "1000"])
    del changes[before_program:]  # a program's own changes end with it
    mark("continue")
    removal.down(Store(), "traced", 0.1)
    mark("end")
sleeper.wait()
print("\\n".join(changes))
"""

# All system calls that can change the machine; a regular expression, because not every architecture has each of them.
_CALLS = (
    "/^(mount|umount2|pivot_root|move_mount|fsmount|open_tree|mount_setattr|sethostname|bpf|ioctl|socket|fork|vfork|clone3?|"
    "open|openat|openat2|creat|mknod|mknodat|mkdir|mkdirat|rmdir|unlink|unlinkat|rename|renameat2?|link|linkat|symlink|"
    "symlinkat|chmod|fchmod|fchmodat|[fl]?chown|fchownat|f?truncate|fallocate|[fl]?setxattr|utimensat|"
    "write|writev|pwrite64|pwritev2?|sendfile|copy_file_range|sendto|sendmsg|sendmmsg|kill|tkill|tgkill|pidfd_send_signal)$"
)

_LINE = re.compile(r"^(?P<call>\w+)\((?P<arguments>.*)\) += (?P<result>-?\d+)")
_REQUEST = re.compile(r"nlmsg_type=(0x[0-9a-f]+|[A-Z_]+)")  # strace prints names only if it can access the namespace

# First word of the announcement, by system call.
_WORDS = {
    "mount": "mount",
    "umount2": "umount",
    "unlink": "unlink",
    "mkdir": "mkdir",
    "rmdir": "rmdir",
    "rename": "rename",
    "ftruncate": "truncate",
    "kill": "signal",
    "pidfd_send_signal": "signal",
    "sethostname": "sethostname",
}


def _traced(trace: str) -> Iterator[str]:
    """Yield the kinds of changes in a process's trace: its successful calls between the marks."""
    is_between_marks = False
    for line in trace.splitlines():
        if '"/nowhere/' in line:
            is_between_marks = '"/nowhere/begin"' in line or '"/nowhere/continue"' in line
        match = _LINE.match(line)
        if not is_between_marks or match is None or int(match["result"]) < 0:
            continue
        if kind := _kind(match["call"], match["arguments"]):
            yield kind


def _kind(call: str, arguments: str) -> str:
    """Return the word for a change; empty for a call without effect outside of the process."""
    match call:
        case "open" | "openat" | "openat2":
            return "create" if "O_CREAT" in arguments else ""
        case "write" | "writev" | "pwrite64":
            written = re.match(r"\d+<([^>]*)>", arguments)
            return "write" if written and written[1].startswith(("/proc/", "/sys/", "/run/")) else ""
        case "sendto" | "sendmsg":
            request = _REQUEST.search(arguments)
            return "netlink" if request and not _is_get_request(request[1]) else ""
        case "fork" | "vfork" | "clone" | "clone3":
            return "start"
        case "bpf":
            return (
                "" if re.match(r"BPF_(MAP_LOOKUP|OBJ_GET_INFO|PROG_GET_FD|MAP_GET_FD|PROG_TEST)", arguments) else "bpf"
            )
        case "ioctl":
            return "" if any(name in arguments for name in ("TCGETS", "FIOCLEX", "SIOCETHTOOL")) else "ioctl"
        case "socket":
            # strace does not show whether SIOCETHTOOL reads or writes; the code opens a socket for each write.
            return "ioctl" if arguments.startswith("AF_INET,") else ""
        case _:
            return _WORDS.get(call, call)


def _is_get_request(request: str) -> bool:
    """Return whether it is an RTM_GET request: the third of each group of four."""
    return int(request, 16) % 4 == 2 if request.startswith("0x") else request.startswith("RTM_GET")


def _announced(change: str) -> str:
    word = change.split()[0].rstrip(":")
    return "signal" if word.startswith("SIG") else word


@pytest.mark.requires("root", "strace")
@pytest.mark.parametrize("kind", ["lasting", "held"])
def test_every_change_that_strace_sees_is_announced(kind: str, machine: Machine, tmp_path: Path) -> None:
    strace = ["strace", "-ff", "-y", "-s", "300", "-e", f"trace={_CALLS}", "-o", f"{tmp_path}/trace"]
    done = subprocess.run(
        [*strace, sys.executable, "-c", _SCRIPT, kind],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert done.returncode == 0, done.stderr
    traces = [trace.read_text() for trace in tmp_path.iterdir()]
    (trace,) = [trace for trace in traces if '"/nowhere/begin"' in trace]
    announced = Counter(map(_announced, done.stdout.splitlines()))
    assert announced == Counter(_traced(trace))
    assert {"mkdir", "create", "write", "rename", "netlink", "signal", "unlink", "rmdir"} <= set(announced)
    machine.assert_unchanged()
