"""The state of clusters: one directory per cluster with its state file, and what programs in its nodes are shown.

    ROOT/CLUSTER/state.json     what it is, who owns it, where its namespaces are
    ROOT/CLUSTER/hosts          shown as /etc/hosts in its nodes
    ROOT/CLUSTER/files/NODE/*   shown at the paths that the description gives
    ROOT/CLUSTER/ssh/           what `secure_shell` has for its servers and clients, once somebody has asked for them

The lock of a cluster is an flock on its directory: it vanishes with its holder, and there is no lock file to leave
behind. ROOT is /run/netns-testbed for root; for a user without root it is in $XDG_RUNTIME_DIR, or in /tmp.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from testbed.cluster.injections import Injection
from testbed.cluster.names import check_cluster
from testbed.cluster.shared_nics import SharedNics
from testbed.errors import (
    ConflictError,
    KernelError,
    NotFoundError,
    PermissionDeniedError,
    TestbedError,
    UnreadableStateError,
)
from testbed.kernel.files import make_directory, remove_directory, replace_file
from testbed.kernel.processes import Identity
from testbed.kernel.userns import is_root
from testbed.spec.layout import Layout
from testbed.spec.layout_json import from_json, to_json

if TYPE_CHECKING:
    from testbed.kernel.datapaths import Asked

FORMAT = 1

PATIENCE = 30.0  # seconds that a command waits for another one on the same cluster

Phase: TypeAlias = Literal["building", "up", "changing", "removing"]


@dataclass(frozen=True, slots=True)
class State:
    """What is known of one cluster.

    origin: the resolved path of its file, or another word for where it came from. phase: "building", "changing" and
    "removing" name the intent of `owner`; after its death they say what was left half-way. lasting: it stays until it is
    taken down; otherwise it ends with `owner`. keeper: the process that holds its namespaces, if one does. namespaces:
    key -> path. inodes: key -> inode, once known. previous: the layout that a change began from.

    asked: the datapath that links were to have. injected: what is injected, and issued, how many injections there have
    ever been. datapaths: link -> who carries it, where that is not "direct"; notes: what is approximate there, or why
    others were not taken. log: the file to which the relay writes fates, or empty. steward: the process that looks after
    the relay, timed faults and agents, if one does. nics: how the nodes' NICs are shared, if they are.
    """

    name: str
    origin: str
    phase: Phase
    lasting: bool
    owner: Identity
    layout: Layout
    namespaces: Mapping[str, str]
    inodes: Mapping[str, int]
    created: int  # seconds of the epoch
    keeper: Identity | None = None
    previous: Layout | None = None
    asked: Asked = "auto"
    injected: tuple[Injection, ...] = ()
    issued: int = 0
    datapaths: Mapping[str, str] = field(default_factory=dict)
    notes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    log: str = ""
    steward: Identity | None = None
    nics: SharedNics | None = None

    @property
    def abandoned(self) -> bool:
        """Whether its owner died half-way, or the cluster should have ended with it."""
        if self.keeper is not None and not self.keeper.alive:
            return True
        return (self.phase in ("building", "removing") or not self.lasting) and not self.owner.alive

    def to_json(self) -> str:
        return json.dumps(
            {
                "format": FORMAT,
                "name": self.name,
                "origin": self.origin,
                "phase": self.phase,
                "lasting": self.lasting,
                "owner": str(self.owner),
                "keeper": str(self.keeper) if self.keeper else None,
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
                "steward": str(self.steward) if self.steward else None,
                "nics": self.nics.to_json() if self.nics else None,
            },
            separators=(",", ":"),
        )

    @classmethod
    def from_json(cls, text: str) -> State:
        """The inverse; ValueError or KeyError for what no `to_json` wrote."""
        data = json.loads(text)
        if data["format"] != FORMAT:
            raise ValueError(f"format {data['format']}, this version reads {FORMAT}")
        return cls(
            name=data["name"],
            origin=data["origin"],
            phase=data["phase"],
            lasting=data["lasting"],
            owner=Identity.parse(data["owner"]),
            layout=from_json(data["layout"]),
            namespaces=data["namespaces"],
            inodes=data["inodes"],
            created=data["created"],
            keeper=Identity.parse(data["keeper"]) if data["keeper"] else None,
            previous=from_json(data["previous"]) if data["previous"] else None,
            asked=data["asked"],
            injected=tuple(Injection.from_json(injection) for injection in data["injected"]),
            issued=data["issued"],
            datapaths=data["datapaths"],
            notes={link: tuple(notes) for link, notes in data["notes"].items()},
            log=data["log"],
            steward=Identity.parse(data["steward"]) if data["steward"] else None,
            nics=SharedNics.from_json(data["nics"]) if data.get("nics") else None,
        )


def file_source(node: str, target: str) -> str:
    """Where, below its cluster's directory, the file lies that programs in a node see at `target`. It follows from the
    target alone: running programs have it bound, and must not see another file's content after an edit."""
    return f"files/{node}/{blake2b(target.encode(), digest_size=8).hexdigest()}"


def default_root() -> Path:
    """Where the state of this user's clusters is."""
    if is_root():
        return Path("/run/netns-testbed")
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if runtime and os.path.isdir(runtime):
        return Path(runtime) / "netns-testbed"
    return Path(f"/tmp/netns-testbed-{os.getuid()}")


class Store:
    """All clusters' states below one root."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = root or default_root()

    def directory(self, name: str) -> Path:
        """A cluster's directory; DescriptionError for a name that no cluster can have."""
        return self.root / check_cluster(name)

    def hosts(self, name: str) -> Path:
        """What the cluster's programs see as /etc/hosts."""
        return self.directory(name) / "hosts"

    def ssh(self, name: str) -> Path:
        """Where keys, configuration and logs of the cluster's ssh are, if it has any."""
        return self.directory(name) / "ssh"

    def names(self) -> list[str]:
        """The clusters that have a directory, in order."""
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
        """A cluster's state; None when it has none. UnreadableStateError when it cannot be understood."""
        path = self.directory(name) / "state.json"
        try:
            self._check_owner()
            text = path.read_text()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except PermissionError as error:
            raise PermissionDeniedError(f"{path} is not readable: run as the user who made cluster {name}") from error
        try:
            return State.from_json(text)
        except (ValueError, KeyError, TypeError) as error:
            raise UnreadableStateError(
                f"{path} cannot be understood ({error}): another version wrote it, or it is damaged; "
                f"'testbed down --name {name}' or 'testbed gc' removes the cluster"
            ) from error

    def write(self, state: State) -> None:
        replace_file(self.directory(state.name) / "state.json", state.to_json())

    def choose(self, name: str | None) -> State:
        """The state of the cluster of that name, or of the only one: see `existing`. NotFoundError says what there is."""
        chosen = self.existing(name)
        state = self.read(chosen)
        if state is None:
            raise NotFoundError(f"cluster {chosen} has no state: 'testbed gc' removes what is left of it")
        return state

    def existing(self, name: str | None) -> str:
        """The name of a cluster that has a directory, even if its state cannot be read; without a name, of the only one, or
        of the only one that stays: others are there for a run or a test. NotFoundError says what there is."""
        found = self.names()
        if name is None:
            if not found:
                raise NotFoundError("no cluster is up; 'testbed up star-4' brings one up")
            if len(found) > 1 and len(staying := self._lasting(found)) == 1:
                return staying[0]
            if len(found) > 1:
                raise NotFoundError(f"several clusters are up ({', '.join(found)}): choose one with --name")
            return found[0]
        if check_cluster(name) not in found:
            there = f"up are {', '.join(found)}" if found else "none is up"
            raise NotFoundError(f"no cluster is named {name}; {there}")
        return name

    def _lasting(self, names: list[str]) -> list[str]:
        """Of these clusters those that stay until they are taken down, and those of which nothing can be told."""
        found = []
        for name in names:
            state = None
            with contextlib.suppress(UnreadableStateError):
                state = self.read(name)
            if state is None or state.lasting:
                found.append(name)
        return found

    # Locks

    @contextmanager
    def locked(self, name: str, patience: float) -> Iterator[Path]:
        """Hold the cluster's lock, making its directory if need be. Waits `patience` seconds for another holder, then
        ConflictError. An empty directory is removed at the end."""
        deadline = time.monotonic() + patience
        path = self.directory(name)
        descriptor = None
        try:
            while descriptor is None:
                self._make_root()
                # The root may just have been tidied away: then once more.
                with _translated(path), contextlib.suppress(FileNotFoundError):
                    make_directory(path, 0o700)
                descriptor = _lock(path, deadline)
                if descriptor is None and time.monotonic() > deadline:
                    raise ConflictError(f"another testbed command is at work on cluster {name}")
            yield path
        finally:
            if descriptor is None:  # broken off before: the directory may be ours, and then nobody else has its lock
                with contextlib.suppress(KernelError):
                    descriptor = _lock(path, deadline=0)
            if descriptor is not None:
                gone = remove_directory(path)  # does nothing while it holds a state
                os.close(descriptor)
                if gone:
                    self._tidy()

    @contextmanager
    def root_locked(self, *, exclusive: bool, patience: float = 60) -> Iterator[None]:
        """Hold the lock of the whole root: shared while names are being made, exclusive while the places that all
        clusters share are made or tidied away. ConflictError after `patience` seconds."""
        deadline = time.monotonic() + patience
        while True:
            self._make_root()
            descriptor = _lock(self.root, deadline, exclusive=exclusive)
            if descriptor is not None:
                break
            if time.monotonic() > deadline:
                raise ConflictError("another testbed command does not finish")
        try:
            yield
        finally:
            os.close(descriptor)

    def _make_root(self) -> None:
        while True:
            with _translated(self.root):
                make_directory(self.root, 0o755 if is_root() else 0o700)
            with contextlib.suppress(FileNotFoundError):  # tidied away meanwhile: once more
                self._check_owner()
                return

    def _check_owner(self) -> None:
        """PermissionDeniedError for a root that another user made, who could tell us anything. FileNotFoundError."""
        if os.lstat(self.root).st_uid != os.geteuid():
            raise PermissionDeniedError(f"{self.root} belongs to another user")

    def drop_root(self) -> None:
        """Remove the root when it is empty. Its exclusive lock must be held: the lock goes with it."""
        remove_directory(self.root)

    def _tidy(self) -> None:
        with contextlib.suppress(ConflictError), self.root_locked(exclusive=True, patience=10):
            self.drop_root()


def _lock(path: Path, deadline: float, *, exclusive: bool = True) -> int | None:
    """Lock a directory; None when it was removed meanwhile or the deadline passed."""
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
            time.sleep(0.01)  # flock has no time-out
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
def _translated(path: Path) -> Iterator[None]:
    """Failures to make our own places, in a user's words."""
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
