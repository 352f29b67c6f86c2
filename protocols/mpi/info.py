"""Info objects: hints of a program, with strings as keys and values. MPI 4.1, chapter 10. Only `Comm.Split_type` of blocking
programs evaluates a hint."""

# ruff: noqa: N802 -- the names are mpi4py's

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Self

from protocols.mpi.mpi_errors import ERR_ARG, ERR_INFO, ERR_INFO_NOKEY, Handle, MPIError


class Info(Handle):
    """An info object, used like a dictionary. Without an argument it is INFO_NULL, which a freed object becomes, too."""

    __slots__ = ("__weakref__", "_entries")

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __init__(self, info: Info | None = None) -> None:
        """info: another handle of the same object."""
        if info is not None and not isinstance(info, Info):
            raise TypeError(f"an Info is expected, not {type(info).__name__}")
        self._entries: dict[str, str] | None = None if info is None else info._entries

    @classmethod
    def Create(cls, items: Mapping[str, str] | Iterable[tuple[str, str]] | None = None) -> Self:
        """Make an info object."""
        info = cls()
        info._entries = dict(items or ())
        return info

    @classmethod
    def Create_env(cls, args: Sequence[str] | None = None) -> Self:  # noqa: ARG003  mpi4py's argument
        """Make a copy of INFO_ENV, which is empty."""
        return cls.Create()

    def Dup(self) -> Self:
        """Copy the info object. Raises MPIError (ERR_INFO) for INFO_NULL, as do the other upper-case calls."""
        return self.Create(self._valid_entries())

    def Free(self) -> None:
        """Free the info object: it becomes INFO_NULL."""
        self._valid_entries()
        self._entries = None

    def Get(self, key: str, maxlen: int = -1) -> str | None:  # noqa: ARG002  mpi4py's argument
        """Return a key's value; None for an unknown key."""
        return self._valid_entries().get(key)

    def Set(self, key: str, value: str) -> None:
        self._valid_entries()[key] = value

    def Delete(self, key: str) -> None:
        """Delete a key. Raises MPIError (ERR_INFO_NOKEY) for an unknown key."""
        if self._valid_entries().pop(key, None) is None:
            raise MPIError(ERR_INFO_NOKEY, f"the info object has no key {key!r}")

    def Get_nkeys(self) -> int:
        return len(self._valid_entries())

    def Get_nthkey(self, n: int) -> str:
        """Return the n-th key, in the order of insertion, from 0. Raises MPIError (ERR_ARG) if there is none."""
        keys = list(self._valid_entries())
        if not 0 <= n < len(keys):
            raise MPIError(ERR_ARG, f"n must be 0 or more, and below the number of keys, {len(keys)}, got {n}")
        return keys[n]

    # Dictionary interface; INFO_NULL is empty.

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
        self._mutable_entries(key)[key] = value

    def __delitem__(self, key: str) -> None:
        del self._mutable_entries(key)[key]

    def get(self, key: str, default: str | None = None) -> str | None:
        return (self._entries or {}).get(key, default)

    def keys(self) -> list[str]:
        return list(self._entries or ())

    def values(self) -> list[str]:
        return list((self._entries or {}).values())

    def items(self) -> list[tuple[str, str]]:
        return list((self._entries or {}).items())

    def update(self, items: Mapping[str, str] | Iterable[tuple[str, str]] = (), **more: str) -> None:
        self._mutable_entries("update").update(items, **more)

    def pop(self, key: str, *default: str | None) -> str | None:
        return (self._entries if self._entries is not None else {}).pop(key, *default)

    def popitem(self) -> tuple[str, str]:
        return self._mutable_entries("popitem").popitem()

    def copy(self) -> Self:
        return self.Create(self._entries) if self._entries is not None else type(self)()

    def clear(self) -> None:
        if self._entries is not None:
            self._entries.clear()

    def _valid_entries(self) -> dict[str, str]:
        if self._entries is None:
            raise MPIError(ERR_INFO, "the info object is INFO_NULL, or was freed")
        return self._entries

    def _mutable_entries(self, key: str) -> dict[str, str]:
        """Return the entries, to change them. Raises KeyError for INFO_NULL, as mpi4py does."""
        if self._entries is None:
            raise KeyError(key)
        return self._entries


INFO_NULL: Final = Info()
INFO_ENV: Final = Info.Create()
"""MPI's description of the start of the program; always empty here."""
