"""Write the README's table of papers, between two comments, and its picture, from the stored rows.

python -m reference.scoreboard     in ci/
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from reference.paper_tables import kept_systems, summary
from testbed.observe.comparing.score_summary import summary_rows
from testbed.observe.kept_rows import KeptRows

ROOT: Final = Path(__file__).parents[2]
PICTURE: Final = ROOT / "ci" / "papers.svg"
_TABLE: Final = re.compile(r"(?<=<!-- made by ci/reference/scoreboard.py -->\n).*?(?=<!-- end -->)", re.DOTALL)


def with_table(readme: str, rows: str) -> str:
    """Return the README's text with the table's text. Raises ValueError if the README has no place for the table."""
    text, count = _TABLE.subn(lambda _: rows, readme)
    if count != 1:
        raise ValueError(
            f"the README must have one place for the table of papers, between the comments of {Path(__file__).name} and "
            f"'end', got {count}"
        )
    return text


def digest(systems: Sequence[KeptRows]) -> str:
    """Return a digest of everything that the picture shows."""
    errors = [[kept.system, [[row.name, round(row.error, 6), row.calibrated] for row in kept.rows]] for kept in systems]
    return hashlib.sha256(json.dumps([*errors, summary_rows(systems)]).encode()).hexdigest()


def picture(systems: Sequence[KeptRows]) -> str:
    """Draw the picture, with the digest of its rows."""
    from testbed.observe.report.paper_plots import error_plot
    from testbed.observe.report.plots import standalone

    return standalone(error_plot(systems), f"rows: {digest(systems)}")


def main() -> None:
    systems = kept_systems()
    readme = ROOT / "README.md"
    readme.write_text(with_table(readme.read_text(), summary(systems)))
    PICTURE.write_text(picture(systems))


if __name__ == "__main__":
    main()
