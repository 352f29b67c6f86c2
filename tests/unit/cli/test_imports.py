"""Commands start quickly, as each imports only what it needs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

PROGRAM = """
import sys
from pathlib import Path
from testbed.cluster.records import state
root = Path(sys.argv.pop(1))
state.default_root = lambda: root
from testbed.cli.entry import main
try:
    main()
finally:
    sys.stdout.write("\\n".join(["modules:", *sys.modules]))
"""

PROTOCOLS = ("scapy", "protocols", "testbed.sim", "testbed.controller", "testbed.observe", "testbed.workloads")
DESCRIPTIONS = ("pydantic", "tomllib", "testbed.spec.elements", "testbed.spec.loader")
IMPAIRMENTS = (
    "testbed.fates.stage",
    "testbed.fabric.direction",
    "testbed.kernel.netem",
    "testbed.kernel.loss_classifier",
)
NETLINK = "pyroute2.netlink"  # the package itself is there without its modules, see `lean_imports`
TRAFFIC_CONTROL = "pyroute2.netlink.rtnl.tcmsg"
FAILURES = ("traceback", "difflib")
OPENSSL = "hashlib"


def imported(arguments: Sequence[str], root: Path) -> set[str]:
    """The modules that a command has imported by its end."""
    command = [sys.executable, "-c", PROGRAM, str(root), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert "modules:" in done.stdout, done.stderr
    return set(done.stdout.partition("modules:\n")[2].split("\n"))


@pytest.mark.parametrize(
    ("arguments", "unneeded"),
    [
        (["--help"], ["rich", NETLINK, *DESCRIPTIONS, *PROTOCOLS]),
        (["status"], ["rich", NETLINK, "pickle", OPENSSL, *DESCRIPTIONS, *PROTOCOLS, *IMPAIRMENTS, *FAILURES]),
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
                *FAILURES,
            ],
        ),
        (["up", "star-3", "--dry-run"], ["rich", "difflib", TRAFFIC_CONTROL, *PROTOCOLS, *IMPAIRMENTS]),
        (["down", "no-such"], ["rich", NETLINK, OPENSSL, *DESCRIPTIONS, *PROTOCOLS, *IMPAIRMENTS]),
    ],
    ids=["help", "status", "exec", "up", "down"],
)
def test_a_command_does_not_import(arguments: Sequence[str], unneeded: Sequence[str], tmp_path: Path) -> None:
    assert sorted(imported(arguments, tmp_path) & set(unneeded)) == []
