"""Only the needed parts of pyroute2 are imported, and a later import of all of it works."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


def output_of(*lines: str) -> object:
    """Run these lines in a new interpreter; return what it prints, parsed as JSON."""
    program = "\n".join(["import json, sys", *lines])
    completed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    return json.loads(completed.stdout)


MODULES = "print(json.dumps(len([name for name in sys.modules if name.startswith('pyroute2.')])))"


def test_netlink_messages_import_few_modules_of_pyroute2() -> None:
    few_modules = output_of("from testbed.kernel import netlink_messages as messages", MODULES)
    all_modules = output_of("import pyroute2", "from testbed.kernel import netlink_messages as messages", MODULES)
    assert isinstance(few_modules, int)
    assert isinstance(all_modules, int)
    assert few_modules < all_modules / 2


@pytest.mark.parametrize(
    "lines",
    [
        ["import pyroute2", "found = pyroute2.IPRoute"],
        ["from pyroute2 import IPRoute as found"],
        ["import pyroute2.netlink", "found = pyroute2.IPRoute"],
        ["import pyroute2", "pyroute2.netlink.rtnl", "found = pyroute2.IPRoute"],
    ],
)
def test_pyroute2_can_be_imported_completely_afterwards(lines: list[str]) -> None:
    before = "from testbed.kernel import netlink_messages as messages"
    text = "print(json.dumps([found.__name__, messages.ifinfmsg is sys.modules['pyroute2.netlink.rtnl.ifinfmsg'].ifinfmsg]))"
    assert output_of(before, *lines, text) == ["IPRoute", True]


def test_a_missing_name_is_an_attribute_error() -> None:
    lines = [
        "from testbed.kernel import netlink_messages as messages",
        "import pyroute2",
        "print(json.dumps(hasattr(pyroute2, 'IPRoutes')))",
    ]
    assert output_of(*lines) is False


def test_a_failed_initialization_is_repeated(tmp_path: Path) -> None:
    (tmp_path / "late").mkdir()
    (tmp_path / "late" / "__init__.py").write_text(
        "import os\nif 'FAIL' in os.environ:\n    raise ImportError\nvalue = 7\n"
    )
    lines = [
        f"import os; sys.path.insert(0, {str(tmp_path)!r}); os.environ['FAIL'] = '1'",
        "from testbed.kernel.deferred_init import defer_init",
        "defer_init('late')",
        "import late",
        "errors = 0",
        "for _ in range(2):",
        "    try: late.value",
        "    except ImportError: errors += 1",
        "del os.environ['FAIL']",
        "print(json.dumps([errors, late.value, type(late).__name__]))",
    ]
    assert output_of(*lines) == [2, 7, "module"]


def test_an_already_imported_package_is_not_changed() -> None:
    lines = [
        "import pyroute2",
        "from testbed.kernel import netlink_messages as messages",
        "print(json.dumps(type(pyroute2).__name__))",
    ]
    assert output_of(*lines) == "module"
