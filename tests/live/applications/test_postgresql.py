"""PostgreSQL in one node and pgbench in another: a transaction costs one round trip per statement.

The server refuses to run as root, so it runs as the package's user in a user namespace.
"""

from __future__ import annotations

import re
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from testbed import RunningCluster, RunningNode
from tests.live.applications.servers import server

pytestmark = [pytest.mark.requires("root", "postgresql"), pytest.mark.usefixtures("machine")]

AS_USER = ["unshare", "--user", "--map-user=postgres"]
PORT = 5432
TRANSACTION = "BEGIN;\nINSERT INTO visits DEFAULT VALUES;\nSELECT count(*) FROM visits;\nEND;\n"


@contextmanager
def postgresql(node: RunningNode) -> Iterator[None]:
    """Run a server with an empty database in the node."""
    programs = max(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
    with tempfile.TemporaryDirectory(prefix="postgresql-") as data:
        node.run([*AS_USER, f"{programs}/initdb", "-D", data, "-A", "trust", "--no-sync"], cwd="/", timeout=60)
        with Path(data, "pg_hba.conf").open("a") as hosts:
            hosts.write("host all all 10.0.0.0/8 trust\n")
        settings = ["listen_addresses=*", "unix_socket_directories=", "fsync=off", f"port={PORT}"]
        serve = [*AS_USER, f"{programs}/postgres", "-D", data, *(f"-c{setting}" for setting in settings)]
        with server(node, serve, PORT, stop=signal.SIGINT, cwd="/"):  # "fast" shutdown, which removes its shared memory
            yield


def milliseconds(client: RunningNode, script: Path) -> float:
    """Return the average latency of a transaction, in ms."""
    command = ["pgbench", "-n", "-h", "n2", "-U", "postgres", "-t", "20", "-f", str(script), "postgres"]
    reported = client.run(command, timeout=60).stdout
    match = re.search(r"latency average = ([\d.]+) ms", reported)
    assert match, reported
    return float(match[1])


def shared_memory() -> set[str]:
    """Return the SysV shared memory segments of the machine's IPC namespace."""
    return {line.split()[1] for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]}


@pytest.mark.cluster("star-2", mode="live")
def test_a_transaction_waits_for_the_network_once_per_statement(cluster: RunningCluster, tmp_path: Path) -> None:
    before = shared_memory()
    client, script = cluster["n1"], tmp_path / "transaction.sql"
    script.write_text(TRANSACTION)
    with postgresql(cluster["n2"]):
        client.run(
            ["psql", "-q", "-h", "n2", "-U", "postgres", "-c", "CREATE TABLE visits (at timestamp DEFAULT now())"]
        )
        near = milliseconds(client, script)
        with cluster.inject("n2", delay="5ms", loss="1%"):
            far = milliseconds(client, script)
        visits = client.run(["psql", "-At", "-h", "n2", "-U", "postgres", "-c", "SELECT count(*) FROM visits"]).stdout
    assert near < 20
    assert far >= 40  # four statements, 10 ms round trip
    assert visits == "40\n"  # in spite of loss
    assert shared_memory() <= before
