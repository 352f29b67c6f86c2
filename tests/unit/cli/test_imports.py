"""Start-up of commands: each imports only the modules that it needs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

PROGRAM = """
import dataclasses
import sys
from pathlib import Path
made = []
make = dataclasses.dataclass
def counted(cls=None, /, **parameters):
    package = sys._getframe(1).f_globals["__name__"].partition(".")[0]
    if package not in sys.stdlib_module_names:  # traceback has some from Python 3.14 on
        made.append(package)
    return make(cls, **parameters)
dataclasses.dataclass = counted
from testbed.cluster.records import state
root = Path(sys.argv.pop(1))
state.default_root = lambda: root
from testbed.cli.entry import main
try:
    main()
finally:
    sys.stdout.write("\\n".join([f"dataclasses: {len(made)}", "modules:", *sys.modules]))
"""

PROTOCOLS = ("scapy", "protocols", "testbed.sim", "testbed.controller", "testbed.observe", "testbed.workloads")
DESCRIPTIONS = ("tomllib", "testbed.spec.element", "testbed.spec.elements", "testbed.spec.loader")
IMPAIRMENTS = (
    "testbed.fates.stage",
    "testbed.fabric.direction",
    "testbed.kernel.netem",
    "testbed.kernel.loss_classifier",
)
NETLINK = "pyroute2.netlink"  # the package is imported without its modules, see `deferred_init`
TRAFFIC_CONTROL = "pyroute2.netlink.rtnl.tcmsg"
ERROR_MODULES = ("traceback", "difflib")
OPENSSL = "hashlib"


def output(arguments: Sequence[str], root: Path) -> str:
    """Return the output of a command, followed by its number of eager dataclasses and its imported modules."""
    command = [sys.executable, "-c", PROGRAM, str(root), *arguments]
    completed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert "modules:" in completed.stdout, completed.stderr
    return completed.stdout


def imported_modules(arguments: Sequence[str], root: Path) -> set[str]:
    """Return the modules that a command has imported."""
    return set(output(arguments, root).partition("modules:\n")[2].split("\n"))


@pytest.mark.requires("interpreted")
@pytest.mark.parametrize(
    ("arguments", "unneeded"),
    [
        (["--help"], ["rich", NETLINK, *DESCRIPTIONS, *PROTOCOLS]),
        (["status"], ["rich", NETLINK, "pickle", OPENSSL, *DESCRIPTIONS, *PROTOCOLS, *IMPAIRMENTS, *ERROR_MODULES]),
        (
            ["exec", "n1", "--", "true"],
            [
                "rich",
                NETLINK,
                "pickle",
                "socket",
                "subprocess",
                OPENSSL,
                *DESCRIPTIONS,
                *PROTOCOLS,
                *IMPAIRMENTS,
                *ERROR_MODULES,
            ],
        ),
        (["up", "star-3", "--dry-run"], ["rich", "difflib", TRAFFIC_CONTROL, *PROTOCOLS, *IMPAIRMENTS]),
        (["down", "no-such"], ["rich", NETLINK, OPENSSL, *DESCRIPTIONS, *PROTOCOLS, *IMPAIRMENTS]),
    ],
    ids=["help", "status", "exec", "up", "down"],
)
def test_a_command_does_not_import(arguments: Sequence[str], unneeded: Sequence[str], tmp_path: Path) -> None:
    assert sorted(imported_modules(arguments, tmp_path) & set(unneeded)) == []


PROFILED_PROGRAM = """
import sys
from testbed.cli.consoles import echo, to_json
document = [{"name": f"n{number}", "note": "frames \\u2014 10\\u00b5s", "numbers": [number]} for number in range(1000)]
calls = 0
def count(frame, event, _):
    global calls
    calls += event == "call" and frame.f_code.co_filename.endswith("consoles.py")
sys.setprofile(count)
echo(to_json(document, 2))
sys.setprofile(None)
assert calls < 10, calls
"""


def test_a_long_document_without_control_characters_is_checked_quickly() -> None:
    completed = subprocess.run(
        [sys.executable, "-c", PROFILED_PROGRAM], capture_output=True, text=True, timeout=60, check=False
    )
    assert (completed.returncode, completed.stderr) == (0, "")


@pytest.mark.parametrize(
    "arguments", [["status"], ["exec", "n1", "--", "true"], ["down", "no-such"], ["up", "star-3", "--dry-run"]]
)
def test_a_command_creates_no_eager_dataclasses(arguments: Sequence[str], tmp_path: Path) -> None:
    """`dataclasses.dataclass` takes ten times as long as the lazy one."""
    dataclasses_made = output(arguments, tmp_path).rpartition("dataclasses: ")[2].partition("\n")[0]
    assert int(dataclasses_made) == 0
