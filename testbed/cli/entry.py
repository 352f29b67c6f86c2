"""Entry point of the command. Ctrl-C during the imports ends it with a message, too."""

from __future__ import annotations

import gc
import sys


def main() -> None:
    """Run the command."""
    try:
        gc.disable()  # imports leave no garbage
        from testbed.cli.main import main as run

        gc.enable()
        run()
    except KeyboardInterrupt:
        sys.stderr.write("testbed: interrupted\n")
        sys.exit(130)
