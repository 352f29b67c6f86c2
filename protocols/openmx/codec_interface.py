"""The interface of Open-MX's codec: `protocols.openmx.codec`, or Scapy on `protocols.openmx.frames`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from protocols.core.firmware import Buffer

Pack = Callable[..., bytes]


class Codec(Protocol):
    """Converter between fields and frames."""

    @property
    def pack_truc(self) -> Pack: ...

    @property
    def pack_connect(self) -> Pack: ...

    @property
    def pack_tiny(self) -> Pack: ...

    @property
    def pack_small(self) -> Pack: ...

    @property
    def pack_medium(self) -> Pack: ...

    @property
    def pack_rndv(self) -> Pack: ...

    @property
    def pack_pull(self) -> Pack: ...

    @property
    def pack_pull_reply(self) -> Pack: ...

    @property
    def pack_notify(self) -> Pack: ...

    @property
    def pack_nack_lib(self) -> Pack: ...

    @property
    def pack_nack_mcp(self) -> Pack: ...

    def type_of(self, raw: Buffer) -> int: ...

    def unpack_truc(self, raw: Buffer) -> tuple[bytes, bytes, int, int, int, int, int, int, int, int, int, Buffer]: ...

    def unpack_connect(
        self, raw: Buffer
    ) -> tuple[bytes, bytes, int, int, int, int, int, int, int, int, int, Buffer]: ...

    def unpack_tiny(self, raw: Buffer) -> tuple[bytes, bytes, int, int, int, int, int, int, int, Buffer]: ...

    def unpack_small(self, raw: Buffer) -> tuple[bytes, bytes, int, int, int, int, int, int, int, Buffer]: ...

    def unpack_medium(
        self, raw: Buffer
    ) -> tuple[bytes, bytes, int, int, int, int, int, int, int, int, int, Buffer]: ...

    def unpack_rndv(
        self, raw: Buffer
    ) -> tuple[bytes, bytes, int, int, int, int, int, int, int, int, int, int, int, Buffer]: ...

    def unpack_pull(
        self, raw: Buffer
    ) -> tuple[bytes, bytes, int, int, int, int, int, int, int, int, int, int, int, int, int, Buffer]: ...

    def unpack_pull_reply(self, raw: Buffer) -> tuple[bytes, bytes, int, int, int, int, int, Buffer]: ...

    def unpack_notify(
        self, raw: Buffer
    ) -> tuple[bytes, bytes, int, int, int, int, int, int, int, int, int, Buffer]: ...

    def unpack_nack_lib(self, raw: Buffer) -> tuple[bytes, bytes, int, int, int, int, int, int, Buffer]: ...

    def unpack_nack_mcp(self, raw: Buffer) -> tuple[bytes, bytes, int, int, int, int, int, Buffer]: ...
