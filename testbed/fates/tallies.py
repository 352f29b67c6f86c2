"""Where frames are counted by rules, and by what leaves their fates to chance: cells, which may outlive a process."""

from __future__ import annotations

from typing import Protocol, TypeAlias


class Numbers(Protocol):
    def __getitem__(self, place: int, /) -> int: ...

    def __setitem__(self, place: int, number: int, /) -> None: ...


Cell: TypeAlias = tuple[Numbers, int]
"""The numbers among which a count stands, and its place there."""


class Tallies:
    """Cells in memory."""

    __slots__ = ()

    @property
    def is_kept(self) -> bool:
        """Whether they outlive the process."""
        return False

    def cell(self, key: tuple[object, ...], within: int | None = None) -> Cell:  # noqa: ARG002  kept ones are told apart
        """Make a cell for a count that begins, at 0, or, where cells are kept, goes on.

        key: tells it from all others of its kind. within: the place of the count of which it is a part, if it is one.
        """
        return [0], 0
