"""Carrier state of an interface: whether its peer is up, and the errors of an interface that is down or gone.

Source: the ioctl interface of include/uapi/linux/ethtool.h (ETHTOOL_GLINK).
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import struct
from typing import Final

SIOCETHTOOL: Final = 0x8946

DOWN: Final = (errno.ENETDOWN, errno.ENXIO, errno.ENODEV)
"""Errors of sockets on an interface that is down or gone."""

_ETHTOOL_GLINK: Final = 0x0A


def has_carrier(descriptor: int, device: str) -> bool:
    """Whether the interface's peer is up. descriptor: a socket in the interface's network namespace.

    Sending without a carrier fails with ENOBUFS until the kernel's link watch has noticed, up to a second later; the
    driver, which is asked here, knows at once.
    """
    answer = ctypes.create_string_buffer(struct.pack("II", _ETHTOOL_GLINK, 0))
    request = struct.pack("16sP16x", device.encode(), ctypes.addressof(answer))  # struct ifreq
    try:
        fcntl.ioctl(descriptor, SIOCETHTOOL, request)
    except OSError:  # the interface is gone
        return False
    return bool(struct.unpack_from("II", answer)[1])
