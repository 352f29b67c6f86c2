"""Measurements of collective calls, and their rows. The workload `imb` measures testbed's calls, and `collectives.c`
measures Open MPI's in the same way."""

import json
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from benchmarks.harness.contenders import ContenderError
from benchmarks.harness.rows import Row
from testbed import Cluster, Grade, RunningCluster, TestbedError
from testbed import run as run_workload
from testbed.controller.runs.runner import RunResult
from testbed.workloads.form import Comm, Node
from testbed.workloads.imb import BENCHMARKS

PROTOCOLS: Mapping[str, str] = {"EMP": "emp", "VIA": "via", "Open-MX": "openmx", "AM-II": "am2"}
"""Protocols on Ethernet that run in the simulation, too, by name in tables."""
FIRMWARE: Mapping[str, Mapping[str, object]] = {"via": {"slots": 16_384, "area": 16_384, "buffer": 4_096}}
"""Settings in the simulation by protocol: VIA's defaults have too few descriptors for 255 connections with sends, and twice
the memory for each connection."""
KERNEL: Mapping[str, str] = {"TCP": "tcp"}
"""Protocols of the kernel, by name in tables."""
OPEN_MPI = "Open MPI on TCP"

LIVE, SIMULATED, BARRIER = "real frames", "simulation", "Barrier"
CALLS = ("Allreduce", "Alltoall")
SOURCE = Path(__file__).with_name("collectives.c")
LINKS = {"delay": "5us", "rate": "1gbit", "queue": "256kb"}
"""Links in the simulation, where NICs take no time. Their queues can hold the 190 KB that an Open-MX pull has in
flight."""
LARGE_LINKS = LINKS | {"mtu": 9000, "queue": "1536kb"}
"""Links for large calls, with a sixth of the frames. A pull of Open-MX has 1.1 MB in flight there."""
LARGE = 1 << 30  # bytes
"""Volume from which an Alltoall is large: it is made once, connects its ranks, and all ranks share its buffers. Otherwise
256 ranks with blocks of 1 MiB would have 128 GiB; only times are measured."""
_LARGE_TIMEOUT = 6 * 3600.0  # s
TIMEOUT = 600.0  # s for a repetition of one contender
_SAMPLE = 1  # s
_REPETITIONS = 2  # in the simulation
_PERIOD = 100_000_000_000  # ns of virtual time, more than any call takes

Line = Mapping[str, Any]
Progress = Callable[[str], None]


def live(
    ranks: Sequence[int], sizes: Sequence[int], count: int, repeat: int, directory: Path, progress: Progress
) -> Iterator[Row]:
    """Measure all contenders in turn, in one star of nodes for each number of ranks. A contender's failure is raised after
    the rows of the others."""
    program = _compile(directory)
    failures: list[ContenderError] = []
    for number in ranks:
        with Cluster.star(number).up() as cluster:
            cluster.ssh()
            samples_by_key: dict[tuple[str, str, int], list[float]] = {}
            for turn in range(1, repeat + 1):
                for contender in (*PROTOCOLS, *KERNEL, OPEN_MPI):
                    progress(f"{number} ranks, {contender}: {turn} of {repeat}")
                    try:
                        if contender == OPEN_MPI:
                            lines = _open_mpi(cluster, program, sizes, count)
                        else:
                            lines = _ours(cluster, {**PROTOCOLS, **KERNEL}[contender], sizes, count)
                    except ContenderError as error:
                        failures.append(ContenderError(f"{number} ranks, {contender}: {error}"))
                        continue
                    for line in lines:
                        key = contender, line["benchmark"], line["size_bytes"]
                        samples_by_key.setdefault(key, []).append(line["avg_ns"] / 1e9)
        for (contender, call, size), samples in samples_by_key.items():
            settings = {"size_bytes": size, "count": count, "cluster": f"star of {number}", "waiting": "sleeping"}
            if contender == OPEN_MPI:
                settings |= {"mpirun": " ".join(_mpirun(number)), "waiting": "yielding"}
            yield Row(LIVE, contender, call, number, "s", tuple(samples), settings)
    if failures:
        raise ContenderError("; ".join(map(str, failures)))


def simulated(contender: str, ranks: int, sizes: Sequence[int], volume: int, progress: Progress) -> Iterator[Row]:
    """Measure calls that move no more than `volume` bytes, in virtual time."""
    for call in CALLS:
        for size in sizes:
            if (call_volume := volume_of(call, ranks, size)) <= volume:
                progress(f"{ranks} simulated ranks, {contender}: {call} of {size:,} bytes")
                is_large = call == "Alltoall" and call_volume >= LARGE
                samples = _simulated(ranks, PROTOCOLS[contender], call, size, is_large)
                settings = {"size_bytes": size, "large": is_large, **(LARGE_LINKS if is_large else LINKS)}
                yield Row(SIMULATED, contender, call, ranks, "s", samples, settings)


def volume_of(call: str, ranks: int, size: int) -> int:
    """Return the bytes that all ranks together send in a call."""
    return size * (2 * ranks if call == "Allreduce" else ranks * (ranks - 1))


def barriers(contender: str, ranks: int, progress: Progress) -> list[Row]:
    """Measure Barrier on 2, 4, 8, ... ranks, in virtual time."""
    rows = []
    for number in (1 << power for power in range(1, ranks.bit_length())):
        progress(f"{BARRIER}: {number} simulated ranks, {contender}")
        samples = _simulated(number, PROTOCOLS[contender], BARRIER, 0, is_large=False)
        rows.append(Row(BARRIER, contender, BARRIER, number, "s", samples, dict(LINKS)))
    return rows


async def calls(comm: Comm, node: Node, *, call: str, size: int) -> list[int]:
    """Make calls that all ranks start at equal virtual times. Returns their nanoseconds, without those of the first call,
    which may connect."""
    benchmark, times = BENCHMARKS[call](comm, size), []
    for number in range(_REPETITIONS + 1):
        await node.sleep(_PERIOD - node.now() % _PERIOD)
        start = node.now()
        await benchmark(number)
        times.append(node.now() - start)
    return times[1:]


async def large_alltoall(comm: Comm, node: Node, *, size: int) -> list[int]:
    """Make one Alltoall with buffers that all ranks share. Returns its nanoseconds."""
    sent, received = _shared_buffers(size * comm.size)
    start = node.now()
    await comm.Alltoall(sent, received)
    return [node.now() - start]


@lru_cache(maxsize=1)
def _shared_buffers(length: int) -> tuple[bytes, bytearray]:
    return bytes(length), bytearray(length)


def _simulated(ranks: int, protocol: str, call: str, size: int, is_large: bool) -> tuple[float, ...]:
    """Return the seconds of each repetition, as the mean over all ranks."""
    cluster = Cluster.star(ranks, **(LARGE_LINKS if is_large else LINKS))
    timeout = _LARGE_TIMEOUT if is_large else (_REPETITIONS + 2) * _PERIOD / 1e9
    done = _run_checked(
        lambda: run_workload(
            cluster,
            large_alltoall if is_large else calls,
            protocol=protocol,
            mode="sim",
            settings={"size": size} if is_large else {"call": call, "size": size},
            timeout=timeout,
            firmware=FIRMWARE.get(protocol),
        )
    )
    return tuple(sum(turn) / ranks / 1e9 for turn in zip(*done.results.values(), strict=True))


def _ours(cluster: RunningCluster, protocol: str, sizes: Sequence[int], count: int) -> Sequence[Line]:
    settings = {
        "benchmarks": CALLS, "sizes": tuple(sizes), "count": count, "least_ranks": len(list(cluster)),
        "most": _SAMPLE * 10**9,
    }  # fmt: skip
    rows: Sequence[Line] = _run_checked(
        lambda: run_workload(cluster, "imb", protocol=protocol, settings=settings, timeout=TIMEOUT)
    ).rows
    return rows


def _run_checked(measure: Callable[[], RunResult]) -> RunResult:
    try:
        done = measure()
    except TestbedError as error:
        lines = str(error).splitlines()
        raise ContenderError(" ... ".join(dict.fromkeys((lines[0], lines[-1])))) from error
    if done.verdict.grade is Grade.INVALID:
        raise ContenderError(f"the run is invalid: {done.verdict}")
    return done


def _mpirun(ranks: int) -> list[str]:
    hosts = ",".join(f"n{number}" for number in range(1, ranks + 1))
    return [
        *("mpirun", "--allow-run-as-root", "--host", hosts, "-np", str(ranks), "--bind-to", "none"),
        *("--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "eth0", "--mca", "oob_tcp_if_include", "eth0"),
        *("--mca", "mpi_yield_when_idle", "1"),
    ]


def _open_mpi(cluster: RunningCluster, program: str, sizes: Sequence[int], count: int) -> Sequence[Line]:
    command = [*_mpirun(len(list(cluster))), program, str(count), str(_SAMPLE), *map(str, sizes)]
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = cluster["n1"].run(command, cwd=folder, timeout=TIMEOUT)
        except TestbedError as error:
            raise ContenderError(str(error)) from error
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def _compile(directory: Path) -> str:
    program = directory / SOURCE.stem
    try:
        done = subprocess.run(["mpicc", "-O2", "-o", program, SOURCE], capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise ContenderError("Open MPI needs mpicc: apt-get install openmpi-bin libopenmpi-dev gcc") from error
    if done.returncode:
        raise ContenderError(f"{SOURCE.name} does not compile:\n{done.stderr}")
    return str(program)
