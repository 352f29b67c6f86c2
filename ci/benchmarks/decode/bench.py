"""``ci/bench decode``: decoding rate of a capture, and the lag when a growing file is followed."""

import argparse
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from benchmarks.harness import command_timing, session
from benchmarks.harness.contenders import ContenderError
from benchmarks.harness.rows import REPOSITORY, Row
from benchmarks.harness.session import Session
from benchmarks.harness.targets import Target
from protocols.emp import codec as emp
from testbed.fabric import pcapng

OUTPUT = REPOSITORY / "results" / "bench-decode.jsonl"
TESTBED = "testbed decode"
MODES = {
    "a line for each frame": (),
    "a line for each frame that a filter lets pass": ("--filter", "emp.type == 3 and direction == backward"),
    "JSON, all fields that filters can name": ("--json",),
    "each message": ("--messages",),
    "by Scapy, all fields of all layers": ("-v",),
}
SCAPY_SLOWDOWN = 20  # Scapy decodes a capture with this fraction of the frames
RATE = 5_000  # frames per second that are appended to a growing file
LAG, BUSY, IDLE = (
    f"lag behind a file that grows by {RATE:,} frames a second",
    "CPU share while it grows",
    "CPU share when idle",
)
LAG_LIMIT, IDLE_LIMIT = 0.25, 0.01  # s, and the share of one CPU
_STEP = 0.01  # s between two writes
_A, _B = bytes.fromhex("020000000001"), bytes.fromhex("020000000002")
_LINK = "n1:eth0--n2:eth0"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    session.add_option(parser, "--repeat", "5", "measured repetitions")
    session.add_option(parser, "--frames", "100000", "frames in the capture")
    session.add_option(parser, "--seconds", "20", "seconds during which a file grows")
    session.add_subjects(parser, ("rate", "follow"))
    session.add_option(parser, "--output", str(OUTPUT), "rows are added to this file")


def capture_head() -> bytes:
    """Return the section header and interface blocks of a capture of EMP between two nodes."""
    nics = pcapng.interface("n1:eth0", _LINK, _A.hex(":")), pcapng.interface("n2:eth0", _LINK, _B.hex(":"))
    return pcapng.section_header("ci/bench decode") + b"".join(nics)


def frame(number: int, when: int) -> bytes:
    """Return the frame with this number as a packet of the capture: messages have three frames, each is acknowledged, and
    every tenth frame is recorded as lost. when: ns."""
    message, index = divmod(number // 2, 3)
    if number % 2:
        raw = emp.pack_frame(_A, _B, emp.TYPE_ACK, 0, 3, 1, 2, message, index, 0)
    elif index == 0:
        raw = emp.pack_message(_B, _A, 0, 3, 1, 2, message, 0, 0, 0, 1, 5, 3_000, message, bytes(1_000))
    else:
        raw = emp.pack_frame(_B, _A, emp.TYPE_DATA, 0, 3, 1, 2, message, index, 0, bytes(1_000))
    fate = "" if number % 10 else f"dropped by loss, frame {number} of flow 0x88b5"
    return pcapng.packet(number % 2, when, raw, "outbound", fate)


def rate(directory: Path, frames: int, repeat: int, progress: Callable[[str], None]) -> Iterator[Row]:
    """Measure the decoding of complete captures, from the command's start to its exit."""
    paths = {}
    for count in (frames, frames // SCAPY_SLOWDOWN):
        paths[count] = directory / f"{count}.pcapng"
        start = time.time_ns()
        paths[count].write_bytes(
            capture_head() + b"".join([frame(number, start + 1_000 * number) for number in range(count)])
        )
    samples: dict[str, list[float]] = {mode: [] for mode in MODES}
    for turn in range(repeat + 1):
        progress(f"rate: {turn} of {repeat}")
        for mode, options in MODES.items():
            count = frames // SCAPY_SLOWDOWN if "-v" in options else frames
            cpu = command_timing.run([*command_timing.command(), "decode", str(paths[count]), *options]).cpu
            if turn:
                samples[mode].append(count / cpu)
    for mode, values in samples.items():
        yield Row("rate", TESTBED, mode, 0, "1/s", tuple(values), {"frames": frames, "of": "CPU time, with the start"})


def follow(directory: Path, seconds: int, progress: Callable[[str], None]) -> Iterator[Row]:
    """Measure the lag from writing a frame to a growing file until its decoded line is printed."""
    path = directory / "grows.pcapng"
    path.write_bytes(capture_head())
    printed: list[float] = []
    command = [*command_timing.command(), "decode", str(path), "--follow"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        stdout = process.stdout
        assert stdout is not None

        def read() -> None:
            for _ in stdout:
                printed.append(time.monotonic())

        reader = threading.Thread(target=read)
        reader.start()
        try:
            written: list[float] = []
            with path.open("ab", buffering=0) as file:
                _append_frames(file.write, written, printed, 1)  # the command has started when it prints the first line
                start, used = time.monotonic(), _processor_time(process.pid)
                progress(f"follow: {seconds} s")
                _append_frames(file.write, written, printed, int(RATE * seconds))
                busy = (_processor_time(process.pid) - used) / (time.monotonic() - start)
            progress("follow: idle")
            start, used = time.monotonic(), _processor_time(process.pid)
            time.sleep(3)  # the span that is measured
            idle = (_processor_time(process.pid) - used) / (time.monotonic() - start)
        finally:
            process.terminate()
            reader.join()
    lags = sorted(after - before for before, after in zip(written[1:], printed[1:], strict=True))
    settings = {"rate": RATE, "seconds": seconds, "step": _STEP}
    for name, share in (("p50", 0.5), ("p99", 0.99), ("worst", 1.0)):
        value = lags[min(len(lags) - 1, int(share * len(lags)))]
        yield Row("follow", TESTBED, f"{name} {LAG}", 0, "s", (value,), settings)
    yield Row("follow", TESTBED, BUSY, 0, "1", (busy,), settings)
    yield Row("follow", TESTBED, IDLE, 0, "1", (idle,), settings)


def _append_frames(write: Callable[[bytes], object], written: list[float], printed: list[float], count: int) -> None:
    """Write `count` more frames at RATE, and return when all of them have been decoded."""
    first, start = len(written), time.monotonic()
    while (done := len(written) - first) < count:
        due = min(count, int((time.monotonic() - start) * RATE) + 1)
        numbers = range(first + done, first + due)
        text = b"".join([frame(number, time.time_ns()) for number in numbers])
        written += [time.monotonic()] * len(numbers)
        write(text)
        time.sleep(_STEP)  # at RATE
    deadline = time.monotonic() + 60
    while len(printed) < len(written):
        if time.monotonic() > deadline:
            raise ContenderError(f"{len(printed):,} of {len(written):,} frames were decoded within a minute")
        time.sleep(_STEP)


def _processor_time(pid: int) -> float:
    """Return the seconds of processor time that a process has used."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def targets(rows: Sequence[Row]) -> list[Target]:
    samples = {row.measure: row.median for row in rows}
    line, *_ = MODES
    return [
        Target(f"{line}, frames per second of CPU time", RATE, "1/s", samples.get(line), is_minimum=True),
        Target(f"p99 {LAG}", LAG_LIMIT, "s", samples.get(f"p99 {LAG}")),
        Target(IDLE, IDLE_LIMIT, "1", samples.get(IDLE)),
    ]


def run(options: argparse.Namespace, session: Session) -> None:
    frames, repeat, progress = int(options.frames), int(options.repeat), session.progress
    if "rate" in options.subjects:
        session.attempt("rate", lambda: rate(session.directory, frames, repeat, progress))
    if "follow" in options.subjects:
        session.attempt("follow", lambda: follow(session.directory, int(options.seconds), progress))
    session.report("Decoding captures", targets)


def main(options: argparse.Namespace) -> int:
    return session.main("decode", options.output, lambda session: run(options, session), root=False)
