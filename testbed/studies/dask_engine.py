"""Dask engines, with workers on this machine or those of a remote scheduler.

A remote scheduler must use mutual TLS, since a client of a scheduler can run any program on its workers. Scapy
(GPL-2.0-only) is not imported together with Dask, which needs packages under Apache-2.0: `study_points` rejects points with
the scapy codec.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from testbed.errors import NotFoundError, TestbedError, UnsupportedError
from testbed.machines.machine_report import DISTRIBUTION

if TYPE_CHECKING:
    from distributed import Client

_TLS: Final = "tls://"
_TIMEOUT: Final = 20  # s, for connecting to a scheduler


@dataclass(frozen=True, slots=True)
class Certificates:
    """Files for mutual TLS. authority: certificate of the CA. certificate, key: certificate and key of the client."""

    authority: Path
    certificate: Path
    key: Path


class DaskHere:
    """Engine of local Dask workers, on loopback, without a dashboard."""

    def __init__(self, width: int) -> None:
        """width: number of workers, each a process with one thread."""
        self.width = width

    @contextmanager
    def open(self) -> Iterator[Executor]:
        import dask
        from distributed import Client, LocalCluster

        with (
            dask.config.set({"distributed.scheduler.allowed-failures": 0}),  # `study_runs` counts the attempts
            LocalCluster(
                n_workers=self.width, threads_per_worker=1, processes=True, host="127.0.0.1", dashboard_address=None,
                silence_logs=50,
            ) as cluster,
            Client(cluster) as client,
        ):  # fmt: skip
            yield client.get_executor(retries=0, pure=False)


class DaskScheduler:
    """Engine of the workers of a remote scheduler. width: number of their threads when the engine is created."""

    def __init__(self, address: str, certificates: Certificates) -> None:
        """address: ``tls://HOST:PORT``. Raises UnsupportedError for an address without TLS or port, NotFoundError for a
        missing file, TestbedError for a scheduler that does not answer or has no workers, UnsupportedError for workers
        without this version of testbed."""
        if not address.startswith(_TLS):
            raise UnsupportedError(
                f"scheduler {address}: without TLS, everyone on its network could run programs on its workers; "
                f"use {_TLS}HOST:PORT"
            )
        if not _has_port(address):
            raise UnsupportedError(f"scheduler {address}: expected {_TLS}HOST:PORT")
        for file in (certificates.authority, certificates.certificate, certificates.key):
            if not file.is_file():
                raise NotFoundError(f"scheduler {address}: there is no file {file}")
        self._address = address
        self._certificates = certificates
        with self._client() as client:
            self.width = sum(worker["nthreads"] for worker in client.scheduler_info(n_workers=-1)["workers"].values())
            if not self.width:
                raise TestbedError(f"scheduler {address} has no workers")
            check_versions(client)

    @contextmanager
    def open(self) -> Iterator[Executor]:
        with self._client() as client:
            yield client.get_executor(retries=0, pure=False)

    @contextmanager
    def _client(self) -> Iterator[Client]:
        from distributed import Client
        from distributed.security import Security

        for name in ("distributed", "distributed.client"):  # they log the loss of the scheduler with tracebacks
            logging.getLogger(name).setLevel(logging.CRITICAL)
        files = self._certificates
        security = Security(
            require_encryption=True, tls_ca_file=str(files.authority), tls_client_cert=str(files.certificate),
            tls_client_key=str(files.key),
        )  # fmt: skip
        try:
            client = Client(self._address, security=security, timeout=_TIMEOUT)
        except OSError as error:  # also TimeoutError
            raise TestbedError(f"scheduler {self._address} cannot be reached: {error}") from error
        with client:
            yield client


def _has_port(address: str) -> bool:
    try:
        return bool(urlsplit(address).hostname and urlsplit(address).port)
    except ValueError:
        return False


def check_versions(client: Client) -> None:
    """Check that all workers have this version of testbed. Raises UnsupportedError."""
    local_version = metadata.version(DISTRIBUTION)
    for worker, version in client.run(metadata.version, DISTRIBUTION, on_error="return").items():
        if version != local_version:  # an exception if testbed is not installed
            actual = f"has testbed {version}" if isinstance(version, str) else f"has no testbed ({version})"
            raise UnsupportedError(
                f"worker {worker} {actual}, and this is testbed {local_version}: install testbed {local_version} "
                "on that worker"
            )
