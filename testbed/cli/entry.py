"""Entry point of the command. It handles Ctrl-C during the imports, too."""

from __future__ import annotations

import gc
import io
import os
import signal
import sys

_REPEAT_DELAY = 0.01
"""Seconds after which a lost Ctrl-C is repeated, so that the callback that has lost it returns first."""


def main() -> None:
    """Run the command."""
    sys.unraisablehook = _repeat_lost_interrupt
    _open_standard_streams()
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")  # where the locale lacks a character, as standard error does
    try:
        gc.disable()  # imports leave no garbage
        from testbed.cli.main import main as run

        gc.enable()
        run()
    except KeyboardInterrupt:
        sys.stderr.write("testbed: interrupted\n")
        sys.exit(130)


def _open_standard_streams() -> None:
    """Open /dev/null for each standard stream that the caller has closed. Otherwise a socket or file of this process could
    get the stream's descriptor, and programs in nodes would write to it."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)
            if descriptor != number:
                os.dup2(descriptor, number)
                os.close(descriptor)
            os.set_inheritable(number, True)
            setattr(sys, name, open(number, mode))  # noqa: SIM115  until the process ends


def _repeat_lost_interrupt(lost: sys.UnraisableHookArgs) -> None:
    """Repeat a Ctrl-C whose exception was raised in a finalizer or in a callback of a weak reference, such as the import
    system's: Python drops exceptions there, and the command would go on."""
    if lost.exc_type is not KeyboardInterrupt:
        sys.__unraisablehook__(lost)
        return
    from threading import Timer

    timer = Timer(_REPEAT_DELAY, os.kill, (os.getpid(), signal.SIGINT))
    timer.daemon = True
    timer.start()
