"""A star made by iproute2: one ``ip -batch`` creates the namespaces, and one more runs in each of them. It sets no sysctls
and no aliases, so it does less than testbed and the floor.
"""

import contextlib
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

from benchmarks.harness.contenders import NAMES, ContenderError, Timing, named_namespaces

DEBIAN_SBIN = "/usr/sbin:/sbin"


class IpBatch:
    """A shell that runs ``ip -batch`` on files written beforehand."""

    name = "ip -batch"

    def __init__(self, directory: Path) -> None:
        self.settings: dict[str, Any] = {"process": "sh, one ip -batch per namespace", "sysctls": "none"}
        self._environment = {**os.environ, "PATH": f"{os.environ.get('PATH', '')}:{DEBIAN_SBIN}"}
        if shutil.which("ip", path=self._environment["PATH"]) is None:
            raise ContenderError("ip -batch needs iproute2: apt-get install iproute2")
        self._directory = directory
        self._cluster = ""
        self._hosts = 0
        self._found_directory = NAMES.is_dir()

    def up(self, cluster: str, hosts: int) -> Timing:
        self._cluster, self._hosts = cluster, hosts
        return self._run(self._write_up())

    def namespaces(self) -> list[str]:
        return named_namespaces(self._cluster)

    def down(self) -> Timing:
        names = [Path(path).name for path in self.namespaces()]
        timed = self._run([f"ip -batch {self._write('down', [f'netns del {name}' for name in names])}"])
        self._cluster = ""
        self._restore_directory()
        return timed

    def close(self) -> None:
        if self._cluster and self.namespaces():
            self.down()

    def _write_up(self) -> list[str]:
        wire, hosts = self._cluster, range(1, self._hosts + 1)
        spaces = [f"netns add {wire}", *(f"netns add {wire}.n{host}" for host in hosts)]
        switch = [
            "link set lo up",
            "link add s1 up address 02:00:00:01:00:00 type bridge stp_state 0 mcast_snooping 0",
        ]
        for host in hosts:
            mac = f"02:00:00:02:{host >> 8:02x}:{host & 255:02x}"
            switch.append(
                f"link add n{host}.eth0 mtu 1500 master s1 up type veth "
                f"peer name eth0 address {mac} mtu 1500 netns {wire}.n{host}"
            )
        lines = [
            f"ip -batch {self._write('spaces', spaces)}",
            f"ip -n {wire} -batch {self._write('wire', switch)}",
        ]
        for host in hosts:
            settings = [
                "link set lo up",
                f"addr add 10.0.{host // 250}.{host % 250 + 1}/16 dev eth0",
                "link set eth0 addrgenmode none up",
            ]
            lines.append(f"ip -n {wire}.n{host} -batch {self._write(f'n{host}', settings)}")
        return lines

    def _write(self, name: str, lines: list[str]) -> Path:
        path = self._directory / f"{name}.batch"
        path.write_text("".join(f"{line}\n" for line in lines))
        return path

    def _run(self, lines: list[str]) -> Timing:
        script = self._directory / "ip-batch.sh"
        script.write_text("set -e\n" + "".join(f"{line}\n" for line in lines))
        start = time.monotonic_ns()
        done = subprocess.run(["sh", script], env=self._environment, capture_output=True, text=True, check=False)
        end = time.monotonic_ns()
        if done.returncode:
            raise ContenderError(f"ip -batch failed: {done.stderr.strip()}")
        return Timing(start, end, {})

    def _restore_directory(self) -> None:
        """Remove /run/netns and its mount, which ip netns leaves, if they were not there before and are unused."""
        if self._found_directory:
            return
        subprocess.run(["umount", str(NAMES)], capture_output=True, check=False)
        with contextlib.suppress(OSError):
            NAMES.rmdir()
