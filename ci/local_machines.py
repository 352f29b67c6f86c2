"""Machines on one kernel, for tests and benchmarks: nodes of a cluster, each with its own PID namespace, /run and sshd.

The cluster's network is their underlay. Commands are run on one more node, the desk.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.harness.command_timing import command
from testbed import Cluster, RunningCluster
from testbed.kernel import namespaces, processes
from testbed.machines.remote_workers import RemoteWorker, workers
from testbed.runtime import event_log
from testbed.spec.machines import load

NAMES = ("a", "b", "c")
SSHD = "/usr/sbin/sshd"
_START_TIMEOUT = 30.0  # s until a machine's sshd listens
_POLL_INTERVAL = 0.005  # s
_INIT = """
mount -n -t tmpfs machine /run && mkdir /run/sshd && mount --bind {shadow} /etc/shadow && mount --bind {passwd} /etc/passwd
{sshd} -D -e -f {config} 2>{log} &
while :; do wait; sleep 3600; done
"""
_AT_THE_DESK = 'mount -n -t tmpfs desk /run && exec "$@"'


class Lab:
    """The machines and the desk. folder: for keys, the desk's home and the desk's files. names: names of the machines."""

    def __init__(self, cluster: RunningCluster, folder: Path, names: Sequence[str] = NAMES) -> None:
        self.cluster = cluster
        self.folder = folder
        self.names = names
        self.home = folder / "home"
        self.nodes = dict(zip((*NAMES, "desk"), (f"n{number}" for number in range(1, 5)), strict=True))
        self._inits: dict[str, subprocess.Popen[str]] = {}

    def address(self, machine: str) -> str:
        return self.cluster[self.nodes[machine]].address

    def prepare(self) -> None:
        """Make keys, and the files of the desk and of the machines' sshd."""
        (self.home / ".ssh").mkdir(parents=True)
        for key in ("host_key", "key", "other_key"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.folder / key], check=True)
        shadow = Path("/etc/shadow").read_text().splitlines(keepends=True)
        unlocked = [line.replace("root:!", "root:", 1).replace("root:*", "root:x", 1) for line in shadow]
        (self.folder / "shadow").write_text("".join(unlocked))
        users = Path("/etc/passwd").read_text().splitlines()
        plain = (f"{user.rpartition(':')[0]}:/bin/sh" if user.startswith("root:") else user for user in users)
        (self.folder / "passwd").write_text(
            "".join(f"{user}\n" for user in plain)
        )  # a shell that reads no startup files
        for name in NAMES:
            temporary = (
                self.folder / f"tmp-{name}"
            )  # one for each, so that no other machine collects a killed one's files
            temporary.mkdir()
            (self.folder / f"sshd_config-{name}").write_text(
                f"HostKey {self.folder}/host_key\nAuthorizedKeysFile {self.folder}/key.pub\nStrictModes no\nUsePAM no\n"
                "PermitRootLogin prohibit-password\nPasswordAuthentication no\nPidFile none\n"
                f"SetEnv TMPDIR={temporary} PATH={Path(sys.executable).parent}:{os.defpath}\n"
            )
        kind, key = (self.folder / "host_key.pub").read_text().split()[:2]
        known = "".join(f"{self.address(name)} {kind} {key}\n" for name in NAMES)
        (self.home / ".ssh/known_hosts").write_text(known)
        (self.folder / "lab.toml").write_text(self.file(self.names))

    def file(self, names: Sequence[str] = NAMES, **keys: Mapping[str, object]) -> str:
        """Return the text of a machines file. keys: by machine, further or other values of keys; None omits a key."""
        lines = []
        for name in names:
            addresses = {key: self.address(name) for key in ("address", "underlay") if name in NAMES}
            table = {
                "name": name,
                **addresses,
                "user": "root",
                "key": "key",
                "python": sys.executable,
                **keys.get(name, {}),
            }
            lines += ["[[machine]]", *(f"{key} = {value!r}" for key, value in table.items() if value is not None)]
        return "\n".join(lines) + "\n"

    def start(self, machine: str) -> None:
        """Start a machine: its first process, and its sshd."""
        script = _INIT.format(
            shadow=self.folder / "shadow", passwd=self.folder / "passwd", sshd=SSHD, log=self.folder / f"{machine}.log",
            config=self.folder / f"sshd_config-{machine}",
        )  # fmt: skip
        isolated = ["unshare", "--mount", "--pid", "--uts", "--fork", "--kill-child", "--mount-proc"]
        node = self.cluster[self.nodes[machine]]
        init = node.popen([*isolated, "sh", "-c", script], stdin=subprocess.DEVNULL)
        self._inits[machine] = init
        deadline = time.monotonic() + _START_TIMEOUT
        while 22 not in processes.open_ports(init.pid, "tcp"):
            if init.poll() is not None or time.monotonic() > deadline:
                raise TimeoutError(f"sshd of machine {machine} does not listen: see {self.folder / machine}.log")
            time.sleep(_POLL_INTERVAL)

    def kill(self, machine: str) -> None:
        """Kill a machine with all its processes."""
        init = self._inits.pop(machine)
        init.kill()
        init.wait()

    def listening(self, machine: str) -> set[int]:
        """Return the TCP ports on which the machine listens."""
        return processes.open_ports(self._inits[machine].pid, "tcp")

    def _init_pid(self, machine: str) -> int:
        """Return the PID of a machine's first process in this PID namespace."""
        pid = self._inits[machine].pid
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])

    def netns_folder(self, machine: str) -> Path:
        """Return the path of a machine's /run/netns in this mount namespace."""
        return Path(f"/proc/{self._init_pid(machine)}/root/run/netns")

    def namespaces(self, machine: str) -> list[str]:
        """Return the names in a machine's /run/netns, sorted."""
        folder = self.netns_folder(machine)
        return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []

    def events(self, machine: str, cluster: str, kind: str) -> list[Mapping[str, object]]:
        """Return the events of one kind from a machine's event log of a cluster."""
        directory = Path(f"/proc/{self._init_pid(machine)}/root/run/netns-testbed/{cluster}")
        return [event for event in event_log.read(directory) if event["event"] == kind]

    @contextmanager
    def workers(self, file: str) -> Iterator[Mapping[str, RemoteWorker]]:
        """Connect from the desk to workers on the machines of a machines file."""
        home = os.environ.get("HOME")
        os.environ["HOME"] = str(self.home)
        try:
            with namespaces.inside(self.cluster[self.nodes["desk"]].namespace), contextlib.chdir(self.folder):
                context = workers(load(Path(file)).machines)
                running = context.__enter__()
        finally:
            os.environ.pop("HOME")
            os.environ.update({"HOME": home} if home is not None else {})
        with contextlib.ExitStack() as stack:
            stack.push(context)
            yield running

    def on(self, machine: str, *program: str) -> subprocess.CompletedProcess[str]:
        """Run a program on a machine, as a user who is logged in there."""
        enter = ["nsenter", "--target", str(self._init_pid(machine)), "--mount", "--pid", "--uts", "--net"]
        return subprocess.run([*enter, *program], capture_output=True, text=True, timeout=60, check=False)

    def programs(self, machine: str) -> list[str]:
        """Return the command lines of a machine's processes, except the first process and those of sshd."""
        pid_namespace = os.stat(f"/proc/{self._inits[machine].pid}/ns/pid_for_children").st_ino
        results = []
        for pid in processes.all_pids():
            try:
                if os.stat(f"/proc/{pid}/ns/pid").st_ino == pid_namespace:
                    line = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").replace("\0", " ").strip()
                    name = Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
                    results.append(line or name)
            except OSError:  # the process has ended
                continue
        return [line for line in results if not line.startswith(("sh -c", "sleep", "sshd", SSHD))]

    def enter_desk(self) -> list[str]:
        """Return the words to put before a command to run it at the desk."""
        namespace = self.cluster[self.nodes["desk"]].namespace
        desk = ["unshare", "--mount", "sh", "-c", _AT_THE_DESK, "desk", "env", f"HOME={self.home}"]
        return ["nsenter", f"--net={namespace}", *desk]

    @contextmanager
    def at_desk(self, *program: str, **streams: int) -> Iterator[subprocess.Popen[str]]:
        """Start a program at the desk, and kill it at the end of the block if it still runs. streams: descriptors of its
        stdin, stdout and stderr; by default no input, and pipes."""
        command = ["unshare", "--mount", "sh", "-c", _AT_THE_DESK, "desk", *program]
        with self.cluster[self.nodes["desk"]].popen(
            command,
            cwd=self.folder,
            env={"HOME": str(self.home)},
            **{"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams},
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def testbed(self, *arguments: str, timeout: float = 90) -> subprocess.CompletedProcess[str]:
        """Run `testbed` at the desk. timeout: seconds."""
        with self.at_desk(*command(), *arguments) as process:
            stdout, stderr = process.communicate(timeout=timeout)
        return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)

    def shut_down(self) -> None:
        for machine in [*self._inits]:
            self.kill(machine)


@contextmanager
def lab(folder: Path, cluster: Cluster | None = None, names: Sequence[str] = NAMES) -> Iterator[Lab]:
    """Run machines until the end of the block. cluster: their network, of four nodes or more. names: the machines to
    start."""
    with (cluster or Cluster.star(4)).up() as running:
        machines = Lab(running, folder, names)
        machines.prepare()
        try:
            for name in names:
                machines.start(name)
            yield machines
        finally:
            machines.shut_down()
