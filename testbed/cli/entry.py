"""Entry point of the command: Ctrl-C during its imports ends it with a sentence, too."""

from __future__ import annotations

import gc
import sys


def main() -> None:
    """Run the command."""
    try:
        gc.disable()  # there is no garbage among modules
        from testbed.cli.main import main as run

        gc.enable()
        run()
    except KeyboardInterrupt:
        sys.stderr.write("testbed: interrupted\n")
        sys.exit(130)
