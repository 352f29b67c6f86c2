"""Reports of runs for the page, drawn by `testbed report` in a process of its own when they are first opened."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

from testbed.cli.own_command import outcome, own_command
from testbed.errors import TestbedError
from testbed.observe.recorded import RESULT


class ReportPages:
    """Reports in a temporary directory. A run that goes on is drawn anew each time."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._turn = asyncio.Lock()  # drawing takes a processor

    async def page(self, folder: Path) -> Path:
        """Return the report of a run as an HTML file. Raises TestbedError with the command's reason."""
        page = self._directory / f"{folder.name}.html"
        async with self._turn:
            result = folder / RESULT
            if page.exists() and result.exists() and page.stat().st_mtime_ns > result.stat().st_mtime_ns:
                return page
            words = ["report", "-o", str(page), "--", str(folder)]
            process = await asyncio.create_subprocess_exec(
                *own_command(words), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
            try:
                output, _ = await process.communicate()
            except asyncio.CancelledError:
                process.kill()
                await process.wait()
                raise
        if process.returncode:
            raise TestbedError(outcome(output.decode(errors="replace"), failed=True))
        return page
