"""Info objects: hints of a program, keys and values that are strings. MPI 4.1, chapter 10. No call heeds any."""

# ruff: noqa: N802 -- the names are mpi4py's

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from protocols.mpi.mpi_errors import ERR_ARG, ERR_INFO, ERR_INFO_NOKEY, Handle, MPIError


class Info(Handle):
    """An info object, which is used like a dictionary. Without contents it is INFO_NULL, as it is once it has been freed."""

    __slots__ = ("__weakref__", "_entries")

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __init__(self, info: Info | None = None) -> None:
        """info: another handle of the same object."""
        if info is not None and not isinstance(info, Info):
            raise TypeError(f"an Info is expected, not {type(info).__name__}")
        self._entries: dict[str, str] | None = None if info is None else info._entries

    @classmethod
    def Create(cls, items: Mapping[str, str] | Iterable[tuple[str, str]] | None = None) -> Info:
        """Make an info object."""
        info = cls()
        info._entries = dict(items or ())
        return info

    def Dup(self) -> Info:
        """Copy it. Raises MPIError (ERR_INFO) for INFO_NULL, as all calls do."""
        return Info.Create(self._known())

    def Free(self) -> None:
        """Free it: it becomes INFO_NULL."""
        self._known()
        self._entries = None

    def Get(self, key: str, maxlen: int = -1) -> str | None:  # noqa: ARG002  mpi4py's argument
        """Return a key's value; None if there is none."""
        return self._known().get(key)

    def Set(self, key: str, value: str) -> None:
        self._known()[key] = value

    def Delete(self, key: str) -> None:
        """Delete a key. Raises MPIError (ERR_INFO_NOKEY)."""
        if self._known().pop(key, None) is None:
            raise MPIError(ERR_INFO_NOKEY, f"no key {key!r}")

    def Get_nkeys(self) -> int:
        return len(self._known())

    def Get_nthkey(self, n: int) -> str:
        """Return the n-th key, in the order in which they were set. Raises MPIError (ERR_ARG)."""
        keys = list(self._known())
        if not 0 <= n < len(keys):
            raise MPIError(ERR_ARG, f"key {n} of {len(keys)}")
        return keys[n]

    # As a dictionary; INFO_NULL is an empty one.

    def __bool__(self) -> bool:
        return self._entries is not None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Info) and self._entries is other._entries

    def __repr__(self) -> str:
        return f"<Info {self._entries}>" if self else "<Info: INFO_NULL>"

    def __len__(self) -> int:
        return len(self._entries or ())

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __contains__(self, key: str) -> bool:
        return key in (self._entries or ())

    def __getitem__(self, key: str) -> str:
        return (self._entries or {})[key]

    def __setitem__(self, key: str, value: str) -> None:
        self._changing(key)[key] = value

    def __delitem__(self, key: str) -> None:
        del self._changing(key)[key]

    def get(self, key: str, default: str | None = None) -> str | None:
        return (self._entries or {}).get(key, default)

    def keys(self) -> list[str]:
        return list(self._entries or ())

    def values(self) -> list[str]:
        return list((self._entries or {}).values())

    def items(self) -> list[tuple[str, str]]:
        return list((self._entries or {}).items())

    def update(self, items: Mapping[str, str] | Iterable[tuple[str, str]] = (), **more: str) -> None:
        self._changing("update").update(items, **more)

    def pop(self, key: str, *default: str | None) -> str | None:
        return (self._entries if self._entries is not None else {}).pop(key, *default)

    def popitem(self) -> tuple[str, str]:
        return self._changing("popitem").popitem()

    def copy(self) -> Info:
        return Info.Create(self._entries) if self._entries is not None else Info()

    def clear(self) -> None:
        if self._entries is not None:
            self._entries.clear()

    def _known(self) -> dict[str, str]:
        if self._entries is None:
            raise MPIError(ERR_INFO, "INFO_NULL has no contents")
        return self._entries

    def _changing(self, key: str) -> dict[str, str]:
        """Return the contents, for a change. Raises KeyError for INFO_NULL, as mpi4py does."""
        if self._entries is None:
            raise KeyError(key)
        return self._entries


INFO_NULL: Final = Info()
INFO_ENV: Final = Info.Create()
"""MPI tells a program here how it was started; this one says nothing."""
