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

# Brings up, changes and takes down; prints what is announced between two marks, which are calls that fail.
_LIFE = """
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
shown = Node(name="n1", files={"/etc/motd": "hello"})
one = Description(name="one", nodes=[shown, Node(name="n2")], links=[Link(ends=["n1", "n2"])])
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
    noted = len(changes)
    sleeper = RunningCluster(Store(), outcome.state)["n1"].popen(["sleep", "1000"])
    del changes[noted:]  # what a program does to its own surroundings ends with it
    mark("go on")
    removal.down(Store(), "traced", 0.1)
    mark("end")
sleeper.wait()
print("\\n".join(changes))
"""

# All calls that could change the machine; an expression, because not every machine has every one.
_CALLS = (
    "/^(mount|umount2|pivot_root|move_mount|fsmount|open_tree|mount_setattr|sethostname|bpf|ioctl|socket|fork|vfork|clone3?|"
    "open|openat|openat2|creat|mknod|mknodat|mkdir|mkdirat|rmdir|unlink|unlinkat|rename|renameat2?|link|linkat|symlink|"
    "symlinkat|chmod|fchmod|fchmodat|[fl]?chown|fchownat|f?truncate|fallocate|[fl]?setxattr|utimensat|"
    "write|writev|pwrite64|pwritev2?|sendfile|copy_file_range|sendto|sendmsg|sendmmsg|kill|tkill|tgkill|pidfd_send_signal)$"
)

_LINE = re.compile(r"^(?P<call>\w+)\((?P<arguments>.*)\) += (?P<result>-?\d+)")
_REQUEST = re.compile(
    r"nlmsg_type=(0x[0-9a-f]+|[A-Z_]+)"
)  # strace knows the names where it can look into the namespace

# What is announced by which word: the first of the announcement.
_PLAIN = {
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


def _seen(trace: str) -> Iterator[str]:
    """The kinds of the changes in a process's trace: its successful calls between the marks."""
    on = False
    for line in trace.splitlines():
        if '"/nowhere/' in line:
            on = '"/nowhere/begin"' in line or '"/nowhere/go on"' in line
        match = _LINE.match(line)
        if not on or match is None or int(match["result"]) < 0:
            continue
        if kind := _kind(match["call"], match["arguments"]):
            yield kind


def _kind(call: str, arguments: str) -> str:
    """The word for a change; empty for a call that changes nothing outside of the process."""
    match call:
        case "open" | "openat" | "openat2":
            return "create" if "O_CREAT" in arguments else ""
        case "write" | "writev" | "pwrite64":
            written = re.match(r"\d+<([^>]*)>", arguments)
            return "write" if written and written[1].startswith(("/proc/", "/sys/", "/run/")) else ""
        case "sendto" | "sendmsg":
            request = _REQUEST.search(arguments)
            return "netlink" if request and not _only_asks(request[1]) else ""
        case "fork" | "vfork" | "clone" | "clone3":
            return "start"
        case "bpf":
            return (
                "" if re.match(r"BPF_(MAP_LOOKUP|OBJ_GET_INFO|PROG_GET_FD|MAP_GET_FD|PROG_TEST)", arguments) else "bpf"
            )
        case "ioctl":
            return "" if any(name in arguments for name in ("TCGETS", "FIOCLEX", "SIOCETHTOOL")) else "ioctl"
        case "socket":
            # strace does not tell whether SIOCETHTOOL asks or sets; for each time that it sets, a socket is opened.
            return "ioctl" if arguments.startswith("AF_INET,") else ""
        case _:
            return _PLAIN.get(call, call)


def _only_asks(request: str) -> bool:
    """Return whether it is one of route-netlink's GET requests: the third of each four."""
    return int(request, 16) % 4 == 2 if request.startswith("0x") else request.startswith("RTM_GET")


def _announced(change: str) -> str:
    word = change.split()[0].rstrip(":")
    return "signal" if word.startswith("SIG") else word


@pytest.mark.requires("root", "strace")
@pytest.mark.parametrize("kind", ["lasting", "held"])
def test_every_change_that_strace_sees_is_announced(kind: str, machine: Machine, tmp_path: Path) -> None:
    tracing = ["strace", "-ff", "-y", "-s", "300", "-e", f"trace={_CALLS}", "-o", f"{tmp_path}/trace"]
    done = subprocess.run(
        [*tracing, sys.executable, "-c", _LIFE, kind],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert done.returncode == 0, done.stderr
    traces = [trace.read_text() for trace in tmp_path.iterdir()]
    (trace,) = [trace for trace in traces if '"/nowhere/begin"' in trace]
    announced = Counter(map(_announced, done.stdout.splitlines()))
    assert announced == Counter(_seen(trace))
    assert {"mkdir", "create", "write", "rename", "netlink", "signal", "unlink", "rmdir"} <= set(announced)
    machine.assert_unchanged()
