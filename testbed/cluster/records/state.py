"""The state of clusters: one directory per cluster, with its state file and the files that programs in its nodes see.

    ROOT/CLUSTER/state.json      layout, owner and namespaces
    ROOT/CLUSTER/hosts           mounted as /etc/hosts in the nodes
    ROOT/CLUSTER/files/NODE/*    files, mounted at the paths in the description
    ROOT/CLUSTER/private/NODE/*  private directories, mounted at the paths in the description
    ROOT/CLUSTER/ssh/            files of `secure_shell` for servers and clients, if ssh has been used

The log of events (`runtime.event_log`), and the locks, sockets, orders and logs of supervisor, relay and agents are there,
too.

The lock of a cluster is an flock on its directory: it ends with the process that took it and leaves no lock file behind.
ROOT is /run/netns-testbed for root; for other users it is in $XDG_RUNTIME_DIR, if they own that directory, or in /tmp.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from testbed.cluster.faults.injections import Injection
from testbed.cluster.plan.namespace_names import WIRE, check_cluster
from testbed.cluster.plan.veth_wiring import Device
from testbed.errors import (
    ConflictError,
    KernelError,
    NotFoundError,
    OtherPidNamespaceError,
    PermissionDeniedError,
    TestbedError,
    UnreadableStateError,
    reason_of,
)
from testbed.json_text import LastDocument, check, loads
from testbed.kernel.filesystem import make_directory, read_text, remove_directory, remove_file, replace_file
from testbed.kernel.namespaces import NAMES, is_namespace
from testbed.kernel.processes import Identity
from testbed.kernel.userns import is_root
from testbed.lazy_dataclass import dataclass
from testbed.spec.layout import ConfiguredDatapath, Layout
from testbed.spec.layout_json import check_ends, from_json_unchecked, to_json

FORMAT = 4

LOCK_TIMEOUT = 30.0  # seconds that a command waits for another command on the same cluster

Phase: TypeAlias = Literal["building", "up", "changing", "removing"]


@dataclass(frozen=True, slots=True)
class State:
    """The recorded state of one cluster.

    origin: the resolved path of its file, or another label of its origin. phase: "building", "changing" and "removing"
    name the operation in progress under the cluster's lock; if nobody holds the lock, it was interrupted. lasting: whether
    the cluster stays until it is taken down; otherwise it ends with `owner`. owner: of a lasting cluster, the process that
    last brought it up, converged it or took it down. holder: the process that holds its namespaces, if any. namespaces: key
    -> path. inodes: key -> inode, once known. created: seconds since the epoch. previous: the layout before an unfinished
    change of the layout.

    asked: the requested datapath of links. injected: the injections in force. issued: the highest number of an injection so
    far. datapaths: link -> its datapath, if not "direct". notes: link -> approximations of its datapath, and reasons why
    other datapaths were not chosen. log: the file to which the relay writes fates, or empty. nics: the sharing of the nodes'
    NICs, if any.
    """

    name: str
    origin: str
    phase: Phase
    lasting: bool
    owner: Identity
    layout: Layout
    namespaces: Mapping[str, str]
    inodes: Mapping[str, int]
    created: int
    holder: Identity | None = None
    previous: Layout | None = None
    asked: ConfiguredDatapath = "auto"
    injected: tuple[Injection, ...] = ()
    issued: int = 0
    datapaths: Mapping[str, str] = field(default_factory=dict)
    notes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    log: str = ""
    nics: SharedNics | None = None

    @property
    def end_reason(self) -> str:
        """An error message if the namespace holder has died, which ends the cluster; otherwise empty."""
        if self.holder is None or self.holder.is_alive:
            return ""
        return end_message(self.name, self.holder)

    @property
    def abandoned(self) -> bool:
        """Whether the cluster must be removed: its namespace holder has died, its owner has died while bringing it up or
        taking it down, or it should have ended with its owner. A lasting cluster with an interrupted change can be
        converged."""
        if self.holder is not None and not self.holder.is_alive:
            return True
        return (self.phase in ("building", "removing") or not self.lasting) and not self.owner.is_alive

    @property
    def required_process(self) -> Identity | None:
        """The process with which the cluster ends, if there is one: its namespace holder, or its owner."""
        return self.holder or (None if self.lasting else self.owner)

    @property
    def has_tunnels(self) -> bool:
        """Whether the cluster has links to other machines, as a part of a spread cluster."""
        return self.layout.part is not None and bool(self.layout.part.tunnels)

    @property
    def mount_holder(self) -> Identity | None:
        """The namespace holder, if the namespaces have names that are visible only in its mount namespace; else None."""
        named = self.namespaces.get(WIRE, "").startswith(f"{NAMES}/")
        return self.holder if named else None

    def has_namespace(self, key: str) -> bool:
        """Whether a namespace of the cluster exists."""
        if (holder := self.mount_holder) is not None:
            return key in self.namespaces and holder.is_alive
        return is_namespace(self.namespaces.get(key, ""))

    def to_json(self) -> str:
        return json.dumps(
            {
                "format": FORMAT,
                "name": self.name,
                "origin": self.origin,
                "phase": self.phase,
                "lasting": self.lasting,
                "owner": str(self.owner),
                "holder": str(self.holder) if self.holder else None,
                "created": self.created,
                "namespaces": dict(self.namespaces),
                "inodes": dict(self.inodes),
                "layout": to_json(self.layout),
                "previous": to_json(self.previous) if self.previous else None,
                "asked": self.asked,
                "injected": [injection.to_json() for injection in self.injected],
                "issued": self.issued,
                "datapaths": dict(self.datapaths),
                "notes": dict(self.notes),
                "log": self.log,
                "nics": self.nics.to_json() if self.nics else None,
            },
            separators=(",", ":"),
        )

    @classmethod
    def from_json(cls, text: str) -> State:
        """Parse the output of `to_json`; ValueError for anything else."""
        try:
            state = cls._from_json(loads(text))
        except KeyError as error:
            raise ValueError(f"key {error} is missing") from None
        except (TypeError, AttributeError, IndexError) as error:
            raise ValueError(f"not the state of a cluster: {error}") from None
        check(state, State)
        for layout in (state.layout, state.previous):
            if layout is not None:
                check_ends(layout)
        return state

    @classmethod
    def _from_json(cls, data: Any) -> State:
        if data["format"] != FORMAT:
            raise ValueError(f"it has format {data['format']}, and this version reads format {FORMAT}")
        return cls(
            name=data["name"],
            origin=data["origin"],
            phase=data["phase"],
            lasting=data["lasting"],
            owner=Identity.parse(data["owner"]),
            layout=from_json_unchecked(data["layout"]),
            namespaces=data["namespaces"],
            inodes=data["inodes"],
            created=data["created"],
            holder=Identity.parse(data["holder"]) if data["holder"] else None,
            previous=from_json_unchecked(data["previous"]) if data["previous"] else None,
            asked=data["asked"],
            injected=tuple(Injection.from_json(injection) for injection in data["injected"]),
            issued=data["issued"],
            datapaths=data["datapaths"],
            notes={link: tuple(notes) for link, notes in data["notes"].items()},
            log=data["log"],
            nics=SharedNics.from_json(data["nics"]) if data.get("nics") else None,
        )


_documents: Final = LastDocument(State.from_json)


def end_message(cluster: str, holder: Identity) -> str:
    """Return the error message for a cluster whose namespace holder has died."""
    return (
        f"cluster {cluster} has ended: process {holder.pid}, which held its namespaces, has died; "
        f"'testbed down --name {cluster}' or 'testbed gc' removes what is left of it"
    )


def _unreadable(path: Path, name: str, error: OSError | ValueError) -> UnreadableStateError:
    reason = reason_of(error) if isinstance(error, OSError) else str(error)
    return UnreadableStateError(
        f"{path} cannot be understood ({reason}): another version wrote it, or it is damaged; "
        f"'testbed down --name {name}' or 'testbed gc' removes the cluster"
    )


def file_source(node: str, target: str) -> str:
    """Return the path, relative to the cluster's directory, of the file that programs in a node see at `target`.

    It depends only on node and target: running programs have the file bind-mounted and must not see another file's content
    after an edit.
    """
    return f"files/{node}/{_digest(target)}"


def directory_source(node: str, target: str) -> str:
    """Return the path, relative to the cluster's directory, of the directory that programs in a node see at `target`."""
    return f"private/{node}/{_digest(target)}"


def _digest(text: str) -> str:
    from hashlib import blake2b  # loads OpenSSL, which takes longer than reading most state files

    return blake2b(text.encode(), digest_size=8).hexdigest()


SYSTEM_ROOT: Final = Path("/run/netns-testbed")
"""Directory of root's clusters. Every user can list it; only root can read the states."""


def default_root() -> Path:
    """Return the directory of this user's clusters."""
    if is_root():
        return SYSTEM_ROOT
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(runtime) and _is_own_directory(runtime):  # after `su` it may still be another user's
        return Path(runtime) / "netns-testbed"
    return Path(f"/tmp/netns-testbed-{os.getuid()}")


def _is_own_directory(path: str) -> bool:
    try:
        status = os.stat(path)
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()


class Store:
    """The states of all clusters below one root."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = root or default_root()

    def directory(self, name: str) -> Path:
        """Return a cluster's directory. Raises DescriptionError for an invalid cluster name."""
        return self.root / check_cluster(name)

    def hosts_file(self, name: str) -> Path:
        """Return the file that the cluster's programs see as /etc/hosts."""
        return self.directory(name) / "hosts"

    def ssh_directory(self, name: str) -> Path:
        """Return the directory of the cluster's ssh keys, configuration and logs; it may not exist."""
        return self.directory(name) / "ssh"

    def names(self) -> list[str]:
        """List the sorted names of all clusters that have a directory. Raises PermissionDeniedError if the root is not
        readable, or belongs to or can be written by another user."""
        try:
            self._check_owner()
            with os.scandir(self.root) as entries:
                return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
        except FileNotFoundError:
            return []
        except PermissionError as error:
            raise PermissionDeniedError(
                f"{self.root} is not readable: run as the user who made the clusters"
            ) from error

    def read(self, name: str) -> State | None:
        """Read a cluster's state; None if it has none.

        Raises UnreadableStateError; OtherPidNamespaceError if the cluster depends on a process of another pid namespace;
        PermissionDeniedError as `names` does; DescriptionError for an invalid name.
        """
        path = self.directory(name) / "state.json"
        try:
            self._check_owner()
            text = read_text(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except PermissionError as error:
            raise PermissionDeniedError(f"{path} is not readable: run as the user who made cluster {name}") from error
        except (OSError, ValueError) as error:
            raise _unreadable(path, name, error) from error
        try:
            state = _documents.of(text)
            if state.name != name:
                raise ValueError(f"it is the state of cluster {state.name!r}")
        except ValueError as error:
            raise _unreadable(path, name, error) from error
        if (process := state.required_process) is not None and process.is_hidden:
            raise OtherPidNamespaceError(
                f"cluster {name} depends on process {process.pid} of another pid namespace (pid:[{process.pid_namespace}]), "
                "which is not visible from here: use or remove the cluster there; if that namespace has ended, "
                f"remove {path.parent}"
            )
        return state

    def write(self, state: State) -> None:
        """Write a cluster's state. Its lock must be held."""
        text = state.to_json()
        replace_file(self.directory(state.name) / "state.json", text)
        _documents.note(text, state)

    def drop(self, name: str) -> None:
        """Remove a cluster's state file. Its lock must be held."""
        remove_file(self.directory(name) / "state.json")

    def choose(self, name: str | None) -> State:
        """Read the state of a cluster. name: as for `existing_name`. Raises NotFoundError, also for a cluster without a
        state, and the errors of `read`."""
        chosen = self.existing_name(name)
        state = self.read(chosen)
        if state is None:
            raise NotFoundError(f"cluster {chosen} has no state: 'testbed gc' removes what is left of it")
        return state

    def existing_name(self, name: str | None) -> str:
        """Return the name of a cluster that has a directory, even if its state is unreadable.

        name: None: the only cluster, or the only lasting one (the others belong to a run or a test). NotFoundError lists the
        clusters.
        """
        names = self.names()
        if name is None:
            if not names:
                raise NotFoundError("no cluster is up; 'testbed up star-4' brings one up")
            if len(names) > 1 and len(lasting := self._lasting(names)) == 1:
                return lasting[0]
            if len(names) > 1:
                raise NotFoundError(f"several clusters are up ({', '.join(names)}): choose one with --name")
            return names[0]
        if check_cluster(name) not in names:
            alternatives = f"up are {', '.join(names)}" if names else "none is up"
            raise NotFoundError(f"no cluster is named {name}; {alternatives}")
        return name

    def _lasting(self, names: list[str]) -> list[str]:
        """Return the clusters that are lasting, or whose state is unreadable, missing or of another pid namespace."""
        lasting = []
        for name in names:
            state = None
            with contextlib.suppress(UnreadableStateError, OtherPidNamespaceError):
                state = self.read(name)
            if state is None or state.lasting:
                lasting.append(name)
        return lasting

    # Locks and the root

    @contextmanager
    def locked(self, name: str, timeout: float) -> Iterator[Path]:
        """Hold the cluster's lock; create its directory if needed, and remove it at the end if it is empty.

        Raises ConflictError if the lock is held elsewhere for longer than `timeout` seconds, PermissionDeniedError or
        TestbedError if a directory cannot be made, KernelError without free file descriptors.
        """
        deadline = time.monotonic() + timeout
        path = self.directory(name)
        descriptor = None
        try:
            while descriptor is None:
                self._make_root()
                # The root may just have been removed: try again.
                with _explained_errors(path), contextlib.suppress(FileNotFoundError):
                    make_directory(path, 0o700)
                descriptor = _lock(path, deadline)
                if descriptor is None and time.monotonic() > deadline:
                    raise ConflictError(f"another testbed command is changing cluster {name}")
            yield path
        finally:
            if descriptor is None:  # interrupted: this process may have made the directory
                with contextlib.suppress(KernelError):
                    descriptor = _lock(path, deadline=0)
            if descriptor is not None:
                is_removed = remove_directory(path)  # no effect while it contains a state
                os.close(descriptor)
                if is_removed:
                    self._remove_empty_root()

    @contextmanager
    def root_locked(self, timeout: float = 60) -> Iterator[None]:
        """Hold the lock of the root, to remove the root. Raises ConflictError after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while True:
            self._make_root()
            descriptor = _lock(self.root, deadline)
            if descriptor is not None:
                break
            if time.monotonic() > deadline:
                raise ConflictError(f"another testbed command does not release the lock of {self.root}")
        try:
            yield
        finally:
            os.close(descriptor)

    @property
    def _root_mode(self) -> int:
        """The permissions of the root. They do not depend on the caller, since an unprivileged user is root in the user
        namespace of a cluster."""
        return 0o755 if self.root == SYSTEM_ROOT else 0o700

    def _make_root(self) -> None:
        while True:
            with _explained_errors(self.root):
                make_directory(self.root, self._root_mode)
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile: try again
                self._check_owner()
                if stat.S_IMODE(os.lstat(self.root).st_mode) & ~self._root_mode:
                    os.chmod(self.root, self._root_mode)  # it existed with another mode
                return

    def _check_owner(self) -> None:
        """Check that the root can be trusted. Raises PermissionDeniedError if it is not a directory or another user owns it
        or can write to it; FileNotFoundError if it does not exist."""
        status = os.lstat(self.root)
        if not stat.S_ISDIR(status.st_mode):
            raise PermissionDeniedError(
                f"{self.root} is not a directory, and clusters need it for their states: remove it"
            )
        if status.st_uid != os.geteuid():
            raise PermissionDeniedError(f"{self.root} belongs to another user")
        if status.st_mode & 0o022:
            raise PermissionDeniedError(
                f"{self.root} can be written by others: 'chmod {self._root_mode:o} {self.root}' makes it safe"
            )

    def drop_root(self) -> None:
        """Remove the root if it is empty. Its lock must be held."""
        remove_directory(self.root)

    def _remove_empty_root(self) -> None:
        with contextlib.suppress(ConflictError), self.root_locked(10):
            self.drop_root()


@contextmanager
def names_locked(*, exclusive: bool, timeout: float = 60) -> Iterator[None]:
    """Hold the lock of /run/netns, which clusters under all roots use.

    It is shared while names are made, and exclusive while the directory and its mount are made or removed. The lock is an
    flock on the parent directory, which is never removed. Raises ConflictError after `timeout` seconds.
    """
    descriptor = _lock(NAMES.parent, time.monotonic() + timeout, exclusive=exclusive)
    if descriptor is None:
        raise ConflictError(f"another testbed command does not release the lock of {NAMES}")
    try:
        yield
    finally:
        os.close(descriptor)


def _lock(path: Path, deadline: float, *, exclusive: bool = True) -> int | None:
    """Lock a directory; None if it was removed meanwhile or the deadline has passed."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise KernelError("no file descriptors are left (see 'ulimit -n')") from error
        raise
    kind = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
    locked = False
    try:
        while not _try_lock(descriptor, kind):
            if time.monotonic() > deadline:
                return None
            time.sleep(0.01)  # flock(2) has no timeout
        with contextlib.suppress(FileNotFoundError):
            locked = os.fstat(descriptor).st_ino == os.stat(path).st_ino
        return descriptor if locked else None
    finally:
        if not locked:
            os.close(descriptor)


def _try_lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def _explained_errors(path: Path) -> Iterator[None]:
    """Translate OSError from the creation of a directory into TestbedError."""
    try:
        yield
    except FileNotFoundError:
        raise
    except PermissionError as error:
        raise PermissionDeniedError(f"cannot make {path}: permission denied") from error
    except OSError as error:
        if error.errno == errno.EROFS:
            raise PermissionDeniedError(f"cannot make {path}: {path.parent} is read-only") from error
        raise TestbedError(f"cannot make {path}: {error.strerror}") from error


@dataclass(frozen=True, slots=True)
class SharedNics:
    """The sharing of a cluster's NICs by several host processes.

    protocol: protocol of the agents. functions: maximum number of host processes per node. spin: nanoseconds that agents
    poll before they sleep. owner: the process that requested the sharing; the sharing ends with it.
    """

    protocol: str
    functions: int
    spin: int
    owner: Identity

    def to_json(self) -> dict[str, object]:
        return {
            "protocol": self.protocol, "functions": self.functions, "spin": self.spin, "owner": str(self.owner),
        }  # fmt: skip

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SharedNics:
        """Parse the output of `to_json`; KeyError, TypeError, AttributeError or ValueError for anything else."""
        return cls(data["protocol"], data["functions"], data["spin"], Identity.parse(data["owner"]))


def shared_devices(layout: Layout, nics: SharedNics | None) -> frozenset[Device]:
    """Return the interfaces that agents use: the first NIC of each node. The kernel must not send GSO frames on them, since
    firmware receives complete frames."""
    if nics is None:
        return frozenset()
    return frozenset((node.name, node.nics[0].name) for node in layout.nodes if node.nics)
