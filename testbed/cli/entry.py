"""Where the command begins: Ctrl-C before it has imported itself ends it with a sentence, too."""

from __future__ import annotations

import sys


def main() -> None:
    """The entry point."""
    try:
        from testbed.cli.main import main as run

        run()
    except KeyboardInterrupt:
        sys.stderr.write("testbed: interrupted\n")
        sys.exit(130)
