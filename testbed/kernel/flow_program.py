"""BPF code that determines a frame's flow as `fates.flows.flow_of` does, and puts the flow's words on the stack.

The words of a flow are destination MAC << 16 | EtherType, source MAC << 16 | number of key fields, and the key fields.
Bytes beyond a frame's end read as zeros, since the kernel's helper clears the buffer, which agrees with the model's
rules for truncated frames. The outer VLAN tag is in the frame or in its metadata. The kernel drops tagged frames of
less than 20 bytes before any filter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from testbed.fates import fate_hash
from testbed.fates.header_fields import (
    ETHERNET_HEADER,
    IPV4,
    IPV6,
    MAX_HOPS,
    MAX_TAGS,
    MIN_ETHERTYPE,
    ROUTE_BYTE,
    TAGS,
    Field,
)
from testbed.kernel.bpf_assembler import R0, R1, R2, R3, R4, R6, R7, R8, R9, R10, Program, Register

WORD: Final = 8
"""Bytes of a word."""

# A helper function and a field of the context: the kernel's include/uapi/linux/bpf.h (struct __sk_buff).
_SKB_LOAD_BYTES: Final = 26
VLAN_PRESENT: Final = 20
VLAN_TAG_BYTES: Final = 4

_TCP, _UDP = 6, 17
_IPV4_HEADER, _IPV6_HEADER, _PORTS = 20, 40, 4

# The stack, downwards from R10: the frame's size, bytes read from the frame, the flow's words, the entry of a new flow.
SIZE: Final = -WORD
_BUFFER: Final = SIZE - _IPV6_HEADER
# Registers with a fixed use: the context, the offset of the network header, the EtherType (later the IP protocol), and the
# offset of the counter for the frame's loss, 0 for a frame that is not lost.
CONTEXT, _HEADER_OFFSET, _TYPE, CAUSE = R6, R7, R8, R9


@dataclass(frozen=True, slots=True)
class FlowKey:
    """The flow key of a protocol.

    begins: first bytes of the protocol's header, if several protocols share the EtherType; they are the first word of the
    key. Empty: the key is for all other headers of the EtherType. routed: whether a source route may precede the header.
    """

    ethertype: int
    fields: tuple[GuardedField, ...]
    begins: bytes = b""
    routed: bool = False

    @property
    def words(self) -> int:
        return len(self.fields) + bool(self.begins)


@dataclass(frozen=True, slots=True)
class GuardedField:
    """A field of a network header, of up to eight bytes. guards: fields, with the values that they must have for this field
    to be present."""

    field: Field
    guards: tuple[tuple[GuardedField, int], ...] = ()


def find_flow(program: Program, flow_keys: tuple[FlowKey, ...]) -> None:
    """Put the flow's words on the stack."""
    key = flow_offset(flow_keys)
    _read(program, 0, 8)
    _to_upper_48(program, R1)
    program.store(R10, key, R1, 8)
    _read(program, 6, 8)
    program.mov(_TYPE, R1)
    program.and_(_TYPE, 0xFFFF)
    _to_upper_48(program, R1)
    program.store(R10, key + WORD, R1, 8)
    for word in range(2, flow_words(flow_keys)):
        program.store(R10, key + word * WORD, 0, 8)
    program.mov(_HEADER_OFFSET, ETHERNET_HEADER)
    _skip_tags(program)
    program.jump_if(_TYPE, "<", MIN_ETHERTYPE, "flow found")
    _or_into(program, key, _TYPE)
    program.jump_if(_TYPE, "==", IPV4, "IPv4")
    program.jump_if(_TYPE, "==", IPV6, "IPv6")
    ethertypes = dict.fromkeys(flow_key.ethertype for flow_key in flow_keys)
    for ethertype in ethertypes:
        program.jump_if(_TYPE, "==", ethertype, f"protocol {ethertype}")
    program.jump("flow found")
    for ethertype in ethertypes:
        program.label(f"protocol {ethertype}")
        same_ethertype = [flow_key for flow_key in flow_keys if flow_key.ethertype == ethertype]
        if same_ethertype[0].routed:
            _skip_route(program)
        # The key for all other headers comes last.
        for flow_key in sorted(same_ethertype, key=lambda flow_key: not flow_key.begins):
            _find_protocol_flow(program, flow_key, key)
        program.jump("flow found")
    _find_ip_flow(program, key)
    program.label("flow found")


def _find_protocol_flow(program: Program, flow_key: FlowKey, key: int) -> None:
    """Put a protocol's flow key on the stack, unless the header begins with other bytes."""
    next_protocol = program.new_label("other")
    word = 2
    if size := len(flow_key.begins):
        _load(program, 0, size, next_protocol)
        program.constant(R2, int.from_bytes(flow_key.begins, "big"))
        program.jump_if(R1, "!=", R2, next_protocol)
        program.store(R10, key + word * WORD, R1, 8)
        word += 1
    _set_count(program, key, flow_key.words)
    for index, field in enumerate(flow_key.fields, word):
        _read_field(program, field, key + index * WORD)
    if size:
        program.jump("flow found")
        program.label(next_protocol)


def _skip_tags(program: Program) -> None:
    """Find the EtherType after up to two VLAN tags; the kernel may have removed the first tag from the frame."""
    for tag in range(MAX_TAGS):
        tagged = f"tag {tag}"
        for ethertype in TAGS:
            program.jump_if(_TYPE, "==", ethertype, tagged)
        program.jump("no tag")
        program.label(tagged)
        if tag == MAX_TAGS - 1:
            program.load(R1, CONTEXT, VLAN_PRESENT, 4)
            program.jump_if(R1, "!=", 0, "no tag")
        program.mov(R2, _HEADER_OFFSET)
        program.add(R2, 2)
        _call_load_bytes(program, R2, _BUFFER, 2)
        program.jump_if(R0, "!=", 0, "no tag")  # truncated
        program.load(_TYPE, R10, _BUFFER, 2)
        program.big_endian(_TYPE, 16)
        program.add(_HEADER_OFFSET, VLAN_TAG_BYTES)
    program.label("no tag")


def _find_ip_flow(program: Program, key: int) -> None:
    """Put the key of an IP flow on the stack: the protocol number, and the lower port of TCP and UDP; 0 if there is none."""
    program.label("IPv4")
    _set_count(program, key, 2)
    _call_load_bytes(program, _HEADER_OFFSET, _BUFFER, _IPV4_HEADER)
    program.load(R1, R10, _BUFFER, 1)
    program.mov(R2, R1)
    program.rsh(R2, 4)
    program.jump_if(R2, "!=", 4, "flow found")
    program.load(_TYPE, R10, _BUFFER + 9, 1)
    program.store(R10, key + 2 * WORD, _TYPE, 8)
    # Only a first fragment has ports: the offset is 13 bits of bytes 6 and 7.
    program.load(R2, R10, _BUFFER + 6, 1)
    program.and_(R2, 0x1F)
    program.load(R3, R10, _BUFFER + 7, 1)
    program.or_(R2, R3)
    program.jump_if(R2, "!=", 0, "flow found")
    program.and_(R1, 0x0F)
    program.lsh(R1, 2)
    program.jump_if(R1, "<", _IPV4_HEADER, "flow found")
    program.add(_HEADER_OFFSET, R1)
    program.jump("transport")

    program.label("IPv6")
    _set_count(program, key, 2)
    _call_load_bytes(program, _HEADER_OFFSET, _BUFFER, _IPV6_HEADER)
    program.load(R1, R10, _BUFFER, 1)
    program.rsh(R1, 4)
    program.jump_if(R1, "!=", 6, "flow found")
    program.load(_TYPE, R10, _BUFFER + 6, 1)
    program.store(R10, key + 2 * WORD, _TYPE, 8)
    program.add(_HEADER_OFFSET, _IPV6_HEADER)

    program.label("transport")
    program.jump_if(_TYPE, "==", _TCP, "ports")
    program.jump_if(_TYPE, "!=", _UDP, "flow found")
    program.label("ports")
    _call_load_bytes(program, _HEADER_OFFSET, _BUFFER, _PORTS)
    program.load(R1, R10, _BUFFER, 2)
    program.big_endian(R1, 16)
    program.load(R2, R10, _BUFFER + 2, 2)
    program.big_endian(R2, 16)
    program.jump_if(R1, "<=", R2, "lower port")
    program.mov(R1, R2)
    program.label("lower port")
    program.store(R10, key + 3 * WORD, R1, 8)


def _skip_route(program: Program) -> None:
    """Move the offset of the network header past a source route, if there is one."""
    end = program.new_label("route's end")
    for _ in range(MAX_HOPS):
        program.mov(R2, _HEADER_OFFSET)
        _call_load_bytes(program, R2, _BUFFER, 1)
        program.jump_if(R0, "!=", 0, end)  # truncated
        program.load(R1, R10, _BUFFER, 1)
        program.jump_if(R1, "<", ROUTE_BYTE, end)
        program.add(_HEADER_OFFSET, 1)
    program.label(end)


def _read_field(program: Program, guarded: GuardedField, stack_offset: int) -> None:
    """Put a field's value on the stack; 0 if the frame does not have the field."""
    absent = program.new_label("absent")
    _check_guards(program, guarded, absent)
    _load_field(program, guarded.field, absent)
    program.store(R10, stack_offset, R1, 8)
    program.label(absent)


def _check_guards(program: Program, guarded: GuardedField, absent: str) -> None:
    """Jump to `absent` unless all guards of a field, and their guards, have the required values."""
    for guard, value in guarded.guards:
        _check_guards(program, guard, absent)
        if not 0 <= value <= fate_hash.MASK:  # no field has this value
            program.jump(absent)
            return
        _load_field(program, guard.field, absent)
        program.constant(R2, value)
        program.jump_if(R1, "!=", R2, absent)


def _load_field(program: Program, field: Field, absent: str) -> None:
    """Load a field's value into R1; jump to `absent` if the frame ends before the field does."""
    _load(program, field.offset, field.width, absent)
    program.constant(R2, field.mask or (1 << 8 * field.width) - 1)
    program.and_(R1, R2)
    program.rsh(R1, field.shift)


def _load(program: Program, offset: int, size: int, absent: str) -> None:
    """Load up to eight bytes of the network header as a number into R1; jump to `absent` if the frame is too short."""
    program.store(R10, _BUFFER, 0, 8)
    program.mov(R2, _HEADER_OFFSET)
    program.add(R2, offset)
    _call_load_bytes(program, R2, _BUFFER + WORD - size, size)
    program.jump_if(R0, "!=", 0, absent)
    program.load(R1, R10, _BUFFER, 8)
    program.big_endian(R1, 64)


def flow_words(flow_keys: tuple[FlowKey, ...]) -> int:
    """Return the number of words of a flow: two, and those of the longest key. The key of IP has two."""
    return 2 + max(2, *(flow_key.words for flow_key in flow_keys), 0)


def flow_offset(flow_keys: tuple[FlowKey, ...]) -> int:
    """Return the offset of the flow's words from R10, the end of the stack."""
    return _BUFFER - flow_words(flow_keys) * WORD


def _read(program: Program, offset: int, size: int) -> None:
    """Load eight bytes of the frame as a big-endian number into R1."""
    program.mov(R2, offset)
    _call_load_bytes(program, R2, _BUFFER, size)
    program.load(R1, R10, _BUFFER, 8)
    program.big_endian(R1, 64)


def _call_load_bytes(program: Program, offset: Register, stack_offset: int, size: int) -> None:
    """Copy bytes of the frame to the stack. If the frame is too short, the bytes are cleared and R0 is not 0."""
    if offset is not R2:
        program.mov(R2, offset)
    program.mov(R1, CONTEXT)
    program.mov(R3, R10)
    program.add(R3, stack_offset)
    program.mov(R4, size)
    program.call(_SKB_LOAD_BYTES)


def _to_upper_48(program: Program, register: Register) -> None:
    """Clear the lowest 16 bits of a register."""
    program.rsh(register, 16)
    program.lsh(register, 16)


def _set_count(program: Program, key: int, count: int) -> None:
    """Set the number of key fields in the flow's words."""
    program.mov(R1, count)
    _or_into(program, key + WORD, R1)


def _or_into(program: Program, stack_offset: int, value: Register) -> None:
    program.load(R2, R10, stack_offset, 8)
    program.or_(R2, value)
    program.store(R10, stack_offset, R2, 8)
