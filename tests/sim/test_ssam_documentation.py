"""The example of SSAM's page of the documentation prints the documented output."""

from __future__ import annotations

import re
from pathlib import Path

import testbed
from testbed.spec.loader import load

PAGE = Path(__file__).parents[2] / "docs" / "protocols" / "ssam.md"


def test_the_documented_program_prints_the_documented_rows(tmp_path: Path) -> None:
    program, output = re.search(r"```python\n(.*?)```\n\n```text\n(.*?)```", PAGE.read_text(), re.DOTALL).groups()  # type: ignore[union-attr]
    file = tmp_path / program.splitlines()[0].removeprefix("# ")
    file.write_text(program)
    run = testbed.run(load("ssam-1995-switch").description, str(file), protocol="ssam", mode="sim")
    rows = [[row["node"], str(row["squares"])] for row in run.rows]
    assert [line.split() for line in output.splitlines()] == [["node", "squares"], *rows]
