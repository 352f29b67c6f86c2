"""Offloads of a network interface, which must be off where frames must be as on a wire.

A veth pair with the kernel's defaults accepts GSO frames: TCP and UDP of up to 64 KiB, whose checksums are still to be
computed, because the other end needs neither. A packet socket, netem or a classifier between two ends then gets one large
frame instead of about forty, and a checksum that was never computed. So the offloads are off (`Offloads.NONE`) on every
device that sends towards one of these, and the kernel completes a frame just before it passes the frame to the device:

- ``tx-checksum-*``: complete checksums of TCP, UDP and SCTP, over IPv4 and IPv6;
- ``tx-*-segmentation`` and ``tx-gso-list``: wire-sized frames, of TCP, of UDP (UDP_SEGMENT) and in tunnels.

Measured with a packet socket at the far end of a pair, 8 MiB of TCP and UDP datagrams with and without UDP_SEGMENT, over
IPv4 and IPv6: with all on, frames of 12 KB and more without a checksum; with these off, no frame above the MTU and every
checksum right. These stay on, because they changed nothing in that measurement:

- ``tx-generic-segmentation``: the sender's stack segments just before the device, which saves processor time;
- ``tx-scatter-gather``: the layout of a frame in memory;
- ``tx-vlan-hw-insert``: the kernel removes the tag of a received frame before a packet socket receives the frame, whoever
  inserted it; the socket gets the tag in its auxiliary data.

Reception needs no setting: veth has GRO off by default, and nothing else merges frames that arrive over a spliced link.

If a packet socket can pass on GSO frames with their header (see `gso`), checksums and TCP segmentation stay on
(`Offloads.TCP`). Every kernel describes these in the header. UDP segmentation is described since Linux 6.2; that of tunnels
and SCTP is described incompletely or not at all.

Before Linux 6.11, sending with UDP_SEGMENT fails with EIO on a device whose checksums are off.

Source: the ioctl interface of include/uapi/linux/ethtool.h (ETHTOOL_GFEATURES); route netlink does not report features.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import re
import socket
import struct
from enum import IntEnum
from typing import Final

from testbed.kernel.changes import announce
from testbed.kernel.packet_options import SIOCETHTOOL

ETHTOOL_GSTRINGS, ETHTOOL_GSSET_INFO = 0x1B, 0x37
ETHTOOL_GFEATURES, ETHTOOL_SFEATURES = 0x3A, 0x3B
ETH_SS_FEATURES: Final = 4

_REQUEST = struct.Struct("16sP16x")  # struct ifreq: the interface's name, a pointer to the command
_SET_INFO = struct.Struct("=IIQI")  # command, reserved, mask of string sets, length of the requested one
_STRINGS = struct.Struct("=III")  # command, string set, length
_HEADER = struct.Struct("=II")  # command, blocks of 32 features
_FEATURES = struct.Struct("=IIII")  # available, requested, active, never changed
_REQUESTED = struct.Struct("=II")  # valid, requested
_STRING: Final = 32  # bytes of a name

_GSO_FEATURES = re.compile(r"tx-checksum-.*|tx-(?!generic-).*segmentation|tx-gso-list")
_TCP = re.compile(r"tx-checksum-ip.*|tx-tcp6?-segmentation|tx-tcp-ecn-segmentation")


class Offloads(IntEnum):
    """GSO frames that an interface accepts."""

    NONE = 0
    TCP = 1
    """TCP frames to be segmented, and IP frames whose TCP or UDP checksum is missing."""
    ALL = 2
    """All that the interface supports, as when it was made."""

    def __str__(self) -> str:
        return {Offloads.NONE: "off", Offloads.TCP: "on for TCP", Offloads.ALL: "on"}[self]


def accepted(descriptor: int, device: str) -> Offloads | None:
    """Return which GSO frames an interface accepts; None if the kernel does not report it, or the interface does not exist.

    A single feature of a kind suffices. descriptor: of any socket of the interface's namespace.
    """
    try:
        gso_masks, tcp = _bits(descriptor, device)
        active = [active for _, _, active, _ in _features(descriptor, device)]
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.ENODEV):  # no features; removed since it was listed
            return None
        raise
    if any(bits & gso & ~of_tcp for bits, gso, of_tcp in zip(active, gso_masks, tcp, strict=True)):
        return Offloads.ALL
    return Offloads.TCP if any(bits & of_tcp for bits, of_tcp in zip(active, tcp, strict=True)) else Offloads.NONE


def accepts_gso(descriptor: int, device: str) -> bool | None:
    """Whether an interface accepts GSO frames of any kind; None and `descriptor`: as for `accepted`."""
    offloads = accepted(descriptor, device)
    return None if offloads is None else offloads > Offloads.NONE


def active(descriptor: int, device: str) -> frozenset[str]:
    """Return the kernel's names of all features that are active on an interface, including those for reception."""
    blocks = _features(descriptor, device)
    return frozenset(
        name
        for index, name in enumerate(_names(descriptor, device))
        if name and blocks[index // 32][2] >> index % 32 & 1
    )


def switch(device: str, enable: bool) -> None:
    """Let an interface of the calling thread's network namespace accept all GSO frames that it supports, or none."""
    allow(device, Offloads.ALL if enable else Offloads.NONE)


def allow(device: str, accepted: Offloads) -> None:
    """Let an interface of the calling thread's network namespace accept these GSO frames and no others."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        descriptor = sock.fileno()
        gso_masks, tcp = _bits(descriptor, device)
        accepts_gso = {Offloads.NONE: (0,) * len(tcp), Offloads.TCP: tcp, Offloads.ALL: gso_masks}[accepted]
        blocks = _features(descriptor, device)
        requested = [
            (mask & available, bits & available)
            for (available, _, _, _), mask, bits in zip(blocks, gso_masks, accepts_gso, strict=True)
        ]
        command = _HEADER.pack(ETHTOOL_SFEATURES, len(requested))
        command += b"".join(_REQUESTED.pack(*block) for block in requested)
        _call(descriptor, device, command)
    announce(f"ioctl: offloads of {device} {accepted}")


_masks: list[tuple[int, ...]] = []  # of `_bits`, cached: a kernel has the same features for all interfaces


def _bits(descriptor: int, device: str) -> list[tuple[int, ...]]:
    """Return the masks of the features for GSO frames, and of those among them that `Offloads.TCP` keeps on, each as a
    number for every block of 32 features."""
    if not _masks:
        names = _names(descriptor, device)
        for kind in (_GSO_FEATURES, _TCP):
            matches = [bool(kind.fullmatch(name)) for name in names]
            blocks = range(0, len(names), 32)
            _masks.append(
                tuple(sum(1 << bit for bit, match in enumerate(matches[at : at + 32]) if match) for at in blocks)
            )
    return _masks


def _names(descriptor: int, device: str) -> list[str]:
    """Return the kernel's names of features, in the order of their bits."""
    command = _SET_INFO.pack(ETHTOOL_GSSET_INFO, 0, 1 << ETH_SS_FEATURES, 0)
    *_, count = _SET_INFO.unpack(_call(descriptor, device, command))
    command = _STRINGS.pack(ETHTOOL_GSTRINGS, ETH_SS_FEATURES, count) + bytes(count * _STRING)
    text = _call(descriptor, device, command)[_STRINGS.size :]
    return [text[at : at + _STRING].rstrip(b"\0").decode() for at in range(0, len(text), _STRING)]


def _features(descriptor: int, device: str) -> list[tuple[int, int, int, int]]:
    """Return four masks for each block of 32 features: available, requested, active, never changed."""
    blocks = len(_bits(descriptor, device)[0])
    answer = _call(descriptor, device, _HEADER.pack(ETHTOOL_GFEATURES, blocks) + bytes(blocks * _FEATURES.size))
    return [_FEATURES.unpack_from(answer, _HEADER.size + block * _FEATURES.size) for block in range(blocks)]


def _call(descriptor: int, device: str, command: bytes) -> bytes:
    """Execute one ethtool command; return the buffer that the kernel has filled."""
    buffer = ctypes.create_string_buffer(command, len(command))
    fcntl.ioctl(descriptor, SIOCETHTOOL, _REQUEST.pack(device.encode(), ctypes.addressof(buffer)))
    return buffer.raw
