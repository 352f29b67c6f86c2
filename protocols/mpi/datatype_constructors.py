"""Constructors of derived datatypes, and their arguments as a datatype's contents (MPI 4.1, section 5.1.13)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

COMBINERS: Final = {
    name: number
    for number, name in enumerate(
        ("NAMED", "DUP", "CONTIGUOUS", "VECTOR", "HVECTOR", "INDEXED", "HINDEXED", "INDEXED_BLOCK", "HINDEXED_BLOCK",
         "STRUCT", "SUBARRAY", "RESIZED", "DARRAY", "F90_COMPLEX", "F90_INTEGER", "F90_REAL", "VALUE_INDEX"),
        start=1,
    )
}  # fmt: skip
"""Constructors of datatypes, by their names after COMBINER_. The last five are not supported."""
_CONTENTS: Final[Mapping[str, tuple[Sequence[str], Sequence[str]]]] = {
    "DUP": ((), ()),
    "CONTIGUOUS": (("count",), ()),
    "VECTOR": (("count", "blocklength", "stride"), ()),
    "HVECTOR": (("count", "blocklength"), ("stride",)),
    "INDEXED": (("#", "blocklengths", "displacements"), ()),
    "HINDEXED": (("#", "blocklengths"), ("displacements",)),
    "INDEXED_BLOCK": (("#", "blocklength", "displacements"), ()),
    "HINDEXED_BLOCK": (("#", "blocklength"), ("displacements",)),
    "STRUCT": (("#", "blocklengths"), ("displacements",)),
    "SUBARRAY": (("#", "sizes", "subsizes", "starts", "order"), ()),
    "RESIZED": ((), ("lb", "extent")),
}
"""Names of a constructor's arguments that are integers, and of those that are addresses. #: the length of the lists."""


class Constructor(NamedTuple):
    """The constructor of a datatype. combiner: a key of COMBINERS. arguments: by name, without the datatype from which
    it was made."""

    combiner: str
    arguments: dict[str, Any]

    def integers_and_addresses(self) -> tuple[list[int], list[int]]:
        """Return the arguments that are integers, and those that are addresses, in MPI's order."""
        integers, addresses = (
            [number for name in names for number in _as_list(self.arguments, name)]
            for names in _CONTENTS[self.combiner]
        )
        return integers, addresses


def _as_list(arguments: Mapping[str, Any], name: str) -> list[int]:
    """Return an argument of a constructor as a list. name: as in _CONTENTS."""
    if name == "#":
        return [len(arguments["sizes"] if "sizes" in arguments else arguments["displacements"])]
    argument = arguments[name]
    return argument if isinstance(argument, list) else [argument]
