"""Diversion of a running link's frames to another interface and back, without loss.

A filter on an interface's hook (clsact) diverts frames from its addition to its removal: a bridge port stays in the bridge,
and joined cables stay joined. The hook must exist already: adding or removing a hook deactivates the interface for
milliseconds, in which outgoing frames are lost.

Frames that are put back must not be diverted again. A packet socket marks them (SO_MARK) with the index of the interface
that they were diverted from; the kernel clears the mark when they enter a node's namespace.

The filters read the mark by classic BPF, which needs no more privileges than the hook, and neither cls_fw nor cls_matchall.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from testbed.kernel.netlink import (
    ETH_P_ALL,
    MIRRED,
    NLM_F_CREATE,
    NLM_F_EXCL,
    NLM_F_REQUEST,
    RTM_DELTFILTER,
    RTM_NEWTFILTER,
    TC_H_CLSACT_EGRESS,
    TC_H_CLSACT_INGRESS,
    TC_MESSAGE,
    TCA_KIND,
    TCA_MIRRED_PARMS,
    TCA_OPTIONS,
    Filter,
    attribute,
    message,
    redirected_to,
)

PRIORITY: Final = 1
"""Priority of the diverting filter: the first on its hook, so that other filters do not see diverted frames."""

INGRESS, EGRESS = TC_H_CLSACT_INGRESS, TC_H_CLSACT_EGRESS  # the two sides of the hook
_INFO: Final = PRIORITY << 16 | ETH_P_ALL
_INSTRUCTION: Final = struct.Struct("=HBBI")
_BPF_ACT, _BPF_OPS_LEN, _BPF_OPS = 1, 4, 5  # TCA_BPF_*
_FIRST_ACTION: Final = 1
_STOLEN: Final = 4  # TC_ACT_STOLEN
_EGRESS_REDIR, _INGRESS_REDIR = 1, 3  # TCA_*
_EVERYTHING: Final = 0xFFFF_FFFF
_SKF_AD_MARK: Final = 0xFFFF_F014
_PASS_OUTGOING: Final = ((0x20, 0, 0, 0xFFFF_F004), (0x15, 3, 0, 4))  # SKF_AD_PKTTYPE is PACKET_OUTGOING: skip three


def filter_by_mark(mark: int, *, if_marked: int, otherwise: int) -> bytes:
    """Make a classic BPF program that returns `if_marked` for frames with this mark, and `otherwise` for other frames."""
    return b"".join(_INSTRUCTION.pack(*instruction) for instruction in _by_mark(mark, if_marked, otherwise))


def drop_reinserted(mark: int) -> bytes:
    """Make a classic BPF program for a socket that captures both directions: it drops incoming frames with this mark, which
    the socket has captured before their diversion."""
    return b"".join(
        _INSTRUCTION.pack(*instruction) for instruction in (*_PASS_OUTGOING, *_by_mark(mark, 0, _EVERYTHING))
    )


def require_mark(mark: int) -> bytes:
    """Make the start of a classic BPF program for a socket that captures both directions: it drops incoming frames without
    this mark."""
    drop_unmarked = ((0x20, 0, 0, _SKF_AD_MARK), (0x15, 1, 0, mark), (0x06, 0, 0, 0))
    return b"".join(_INSTRUCTION.pack(*instruction) for instruction in (*_PASS_OUTGOING, *drop_unmarked))


def _by_mark(mark: int, if_marked: int, otherwise: int) -> tuple[tuple[int, int, int, int], ...]:
    return (0x20, 0, 0, _SKF_AD_MARK), (0x15, 0, 1, mark), (0x06, 0, 0, if_marked), (0x06, 0, 0, otherwise)


def divert(index: int, side: int, out: int, mark: int, *, as_outgoing: bool = False) -> bytes:
    """Encode the request that diverts an interface's incoming (INGRESS) or outgoing (EGRESS) frames without this mark to
    the interface `out`. There they come in, or, if `as_outgoing`, leave."""
    return _diversion_request(index, side, out, as_outgoing, filter_by_mark(mark, if_marked=0, otherwise=_EVERYTHING))


def put_back(index: int, out: int, mark: int) -> bytes:
    """Encode the request that redirects an interface's incoming frames with this mark to `out`, as incoming frames."""
    return _diversion_request(index, INGRESS, out, False, filter_by_mark(mark, if_marked=_EVERYTHING, otherwise=0))


def remove(index: int, side: int) -> bytes:
    """Encode the request that removes a filter of `divert` or `put_back`. The kernel rejects it with ENOENT if there is no
    such filter, and with EINVAL if there is no hook."""
    return message(RTM_DELTFILTER, NLM_F_REQUEST, TC_MESSAGE.pack(0, index, 0, side, _INFO))


class Diversion(NamedTuple):
    """Indexes of the interfaces to which an interface's incoming and outgoing frames are diverted. 0: not diverted; -1: to
    an interface that was removed."""

    incoming: int = 0
    outgoing: int = 0


def diversions(
    incoming: Mapping[int, Sequence[Filter]], outgoing: Mapping[int, Sequence[Filter]]
) -> dict[int, Diversion]:
    """Return the diversions of interfaces, by index; interfaces without a diversion are left out.

    incoming, outgoing: the filters on both sides of the interfaces' hooks. The diversion of outgoing frames begins
    after that of incoming frames and ends before it, so it is only read if incoming frames are diverted.
    """
    return {
        index: Diversion(target, _target(outgoing[index]))
        for index, hook_filters in incoming.items()
        if (target := _target(hook_filters))
    }


def _target(hook_filters: Sequence[Filter]) -> int:
    """Return the index of the interface to which one of these filters diverts. Values as in `Diversion`."""
    for entry in hook_filters:
        if entry.priority == PRIORITY and _BPF_ACT in entry.options:
            return redirected_to(entry.options[_BPF_ACT]) or -1
    return 0


def _diversion_request(index: int, side: int, out: int, as_outgoing: bool, program: bytes) -> bytes:
    redirect_action = _EGRESS_REDIR if as_outgoing else _INGRESS_REDIR
    mirred = attribute(TCA_MIRRED_PARMS, MIRRED.pack(0, 0, _STOLEN, 0, 0, redirect_action, out))
    action = attribute(TCA_KIND, b"mirred\0") + attribute(TCA_OPTIONS, mirred)
    options = (
        attribute(_BPF_ACT, attribute(_FIRST_ACTION, action))
        + attribute(_BPF_OPS_LEN, struct.pack("=H", len(program) // _INSTRUCTION.size))
        + attribute(_BPF_OPS, program)
    )
    body = attribute(TCA_KIND, b"bpf\0") + attribute(TCA_OPTIONS, options)
    flags = NLM_F_REQUEST | NLM_F_CREATE | NLM_F_EXCL
    return message(RTM_NEWTFILTER, flags, TC_MESSAGE.pack(0, index, 0, side, _INFO) + body)
