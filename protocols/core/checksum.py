"""CRC-32 as in zlib, and several times as fast: of every frame that is sent or received it is computed.

By Intel's library: 0.17 us for 1,500 bytes where Debian's zlib takes 0.65, 0.05 us for 42 where that takes 0.17.
"""

from isal.isal_zlib import crc32

__all__ = ["crc32"]
