"""CRC-32 as in zlib, but several times faster. It is computed for every frame that is sent or received.

Uses Intel's library: 0.17 us for 1,500 bytes (Debian's zlib: 0.65 us), 0.05 us for 42 bytes (zlib: 0.17 us).
"""

from typing import Final

from isal import isal_zlib

crc32: Final = isal_zlib.crc32
