"""Requirements of tests, each probed by trying it; ``@pytest.mark.requires("root", "ping")`` asks for them.

They extend the pytest plug-in's. A requirement that the machine does not meet skips the test with its reason. In a
strict run a missing tool that ci/test installs itself is a failure instead.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from protocols.core.compiled_build import INTERPRETED, build
from testbed.kernel import syscalls
from testbed.kernel.children import in_child
from testbed.pytest_plugin import requires_marker as plugin

_PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"  # where daemons are


@dataclass(frozen=True, slots=True)
class Requirement:
    """missing: why this machine does not meet it, empty when it does. ours: ci/test installs it."""

    missing: Callable[[], str]
    ours: bool = False


def _tool(name: str) -> Requirement:
    return Requirement(lambda: "" if shutil.which(name, path=_PATH) else f"there is no program {name}", ours=True)


def _user_namespace() -> str:
    """An ordinary user's, as the tests make it: root gives up being root first."""

    def as_user() -> str:
        if os.geteuid() == 0:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
        try:
            syscalls.unshare(syscalls.CLONE_NEWUSER | syscalls.CLONE_NEWNS | syscalls.CLONE_NEWNET)
        except OSError as error:
            return f"an ordinary user gets no user namespace: {error.strerror}"
        return ""

    return in_child(as_user)


def _strace() -> str:
    if not shutil.which("strace"):
        return "there is no program strace"
    completed = subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True, text=True, check=False)
    return "" if completed.returncode == 0 else f"this machine forbids tracing: {completed.stderr.strip()}"


def _overlay() -> str:
    """A read-only or changed view of a directory is made with an overlay."""
    if reason := plugin.missing_reason("root"):
        return reason

    def mount() -> str:
        syscalls.unshare(syscalls.CLONE_NEWNS)
        syscalls.mount("none", "/", flags=syscalls.MS_REC | syscalls.MS_PRIVATE)
        with tempfile.TemporaryDirectory() as base:
            syscalls.mount("none", base, "tmpfs")
            directories = [f"{base}/{name}" for name in ("lower", "upper", "work", "merged")]
            for directory in directories:
                os.mkdir(directory)
            lower, upper, work, merged = directories
            try:
                syscalls.mount("none", merged, "overlay", 0, f"lowerdir={lower},upperdir={upper},workdir={work}")
                syscalls.umount(merged)
            except OSError as error:
                return f"the kernel has no overlay file system for us: {error.strerror}"
            finally:
                syscalls.umount(base)
        return ""

    return in_child(mount)


def _mpi4py() -> str:
    """Try mpi4py in the system's Python, which has the build for the system's MPI."""
    completed = subprocess.run(["/usr/bin/python3", "-c", "import mpi4py"], capture_output=True, check=False)
    return "" if completed.returncode == 0 else "the system's Python has no mpi4py"


def _postgresql() -> str:
    is_available = shutil.which("pgbench") and any(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return "" if is_available else "there is no PostgreSQL server in /usr/lib/postgresql, or no pgbench"


@cache
def ordinary_users_python() -> str:
    """An interpreter of our version that an ordinary user may start, the running one if possible; "" where none is."""
    program = f"import encodings, sys; sys.exit(sys.version_info[:2] != {tuple(sys.version_info[:2])})"
    for interpreter in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        command = [interpreter, "-c", program]
        try:
            completed = subprocess.run(
                command, check=False, capture_output=True, cwd="/", user=65534, group=65534, extra_groups=[]
            )
        except OSError:  # it is not there, or not for an ordinary user; or we may not become one
            continue
        if completed.returncode == 0:
            return interpreter
    return ""


def _user_python() -> str:
    return "" if ordinary_users_python() else "there is no Python of this version that an ordinary user may start"


def _interpreted() -> str:
    """Modules that a test patches, or whose source it reads, must not be compiled."""
    return "" if build() == INTERPRETED else "the modules that run per frame are compiled here"


def _python_headers() -> str:
    folder = Path(sysconfig.get_path("include"))
    return "" if (folder / "Python.h").exists() else f"there is no Python.h in {folder}"


REQUIREMENTS = {name: Requirement(missing) for name, missing in plugin.REQUIREMENTS.items()} | {
    "userns": Requirement(_user_namespace),
    "user-python": Requirement(_user_python),
    "steady-time": Requirement(lambda: "an emulated machine's time is coarse" if os.environ.get("TESTBED_VM") else ""),
    "overlay": Requirement(_overlay),
    "vm": Requirement(lambda: "" if os.environ.get("TESTBED_VM") else "runs in the virtual machine of ci/vm"),
    "strace": Requirement(_strace, ours=bool(not shutil.which("strace"))),
    "compiler": Requirement(lambda: "" if shutil.which("cc") else "there is no C compiler (cc)"),
    "python-headers": Requirement(_python_headers),
    "interpreted": Requirement(_interpreted),
    "ip": _tool("ip"),
    "ssh": _tool("ssh"),
    "sshd": _tool("sshd"),
    "openssl": _tool("openssl"),
    "ping": _tool("ping"),
    "tcpdump": _tool("tcpdump"),
    "tshark": _tool("tshark"),
    "chromium": _tool("chromium"),
    "curl": _tool("curl"),
    "iperf3": _tool("iperf3"),
    "mpicc": _tool("mpicc"),
    "mpirun": _tool("mpirun"),
    "mpi4py": Requirement(_mpi4py, ours=True),
    "postgresql": Requirement(_postgresql, ours=True),
    "redis-benchmark": _tool("redis-benchmark"),
    "redis-server": _tool("redis-server"),
}


@cache
def missing(name: str) -> str:
    """Return why this machine does not meet a requirement, checked once; empty if it does."""
    return REQUIREMENTS[name].missing()
