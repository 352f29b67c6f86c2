"""BPF program that decides which frames of one direction are lost, exactly as `testbed.fates` decides it.

It runs on every frame that comes in on an interface, before the filter that redirects it, and returns TC_ACT_SHOT for a
frame that is lost and TC_ACT_UNSPEC, which leaves the frame to the next filter, for every other. Per frame:

1. It is counted as offered.
2. Gilbert-Elliott and the pattern step with the direction's number of the frame (only if they are asked for).
3. Independent loss (only if asked for): the frame's flow is found as `fates.flows.flow_of` finds it; the flow's entry in
   the map of flows holds the start of its stream of draws and how many frames it has had.

Frames may come in on several processors at once: numbers are drawn by atomic additions, so that no two frames get the
same one, and the two states of Gilbert-Elliott step together with the number in one word by compare-and-exchange.

Three maps, by name. "counters": one value, the words that `COUNTERS` names; it may outlive the program. "state": one
value, the direction's word, its number of frames (with Gilbert-Elliott: times 2, plus 1 in the bad state). "flows": the
words of a flow -> its start and its number of frames. The words of a flow are destination MAC << 16 | EtherType, source
MAC << 16 | number of key fields, and the key fields.

Reading behind a frame's end gives zeros, since the kernel's helper clears what it cannot fill; the model's rules for
frames cut short come to the same. The kernel carries a frame's outer VLAN tag beside it, or in it; it drops a tagged frame
of less than 20 bytes before any filter.
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
    ROUTE_BYTE,
    SMALLEST_ETHERTYPE,
    TAGS,
    Field,
)
from testbed.kernel.bpf import BPF_NOEXIST
from testbed.kernel.bpf_assembler import R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10, Program, Register

TC_ACT_UNSPEC, TC_ACT_SHOT = -1, 2

COUNTERS: Final = (
    "offered", "offered_bytes", "loss", "gemodel", "loss_pattern", "lost_bytes", "untold", "unsteady", "merged",
)  # fmt: skip
"""The words of the one value of "counters"."""

WORD: Final = 8

# Helper functions and fields of the context: the kernel's include/uapi/linux/bpf.h (struct __sk_buff).
_MAP_LOOKUP, _MAP_UPDATE, _SKB_LOAD_BYTES = 1, 2, 26
_LEN, _VLAN_PRESENT, _GSO_SIZE = 0, 20, 176
_VLAN_TAG_BYTES: Final = 4

_TCP, _UDP = 6, 17
_IPV4_HEADER, _IPV6_HEADER, _PORTS = 20, 40, 4

MAX_TRIES: Final = 32
"""Attempts to step Gilbert-Elliott's word while other processors step it: each failure is another's success."""

# The stack, from its end at R10 down: the frame's size, bytes read from the frame, the flow's words, and before them the
# entry of a new flow.
_SIZE: Final = -WORD
_READ: Final = _SIZE - _IPV6_HEADER
# Registers that keep their meaning throughout: the context, the offset of the network header, the EtherType (later the IP
# protocol), and the offset of the counter of the frame's loss, 0 for a frame that is not lost.
_CONTEXT, _AT, _TYPE, _CAUSE = R6, R7, R8, R9


@dataclass(frozen=True, slots=True)
class Losses:
    """Losses of one direction, in the numbers of `fate_hash`.

    key: the direction's. loss: the threshold of the independent loss, 0 for none. gemodel: the thresholds of p, r, 1-h and
    1-k, or empty. ranges: the pattern's numbers as pairs of first and last, in order; period: 0 if it is not repeated.
    flows: the flow keys of the protocols that have one.
    """

    key: int
    loss: int = 0
    gemodel: tuple[int, ...] = ()
    ranges: tuple[tuple[int, int], ...] = ()
    period: int = 0
    flows: tuple[FlowKey, ...] = ()

    @property
    def flow_words(self) -> int:
        """Words of a flow's key in the map: two, and the key fields; IP has two."""
        return 2 + max(2, *(flow_key.words for flow_key in self.flows), 0)


@dataclass(frozen=True, slots=True)
class FlowKey:
    """The flow key of a protocol. begins: the first bytes of its header, which are then the key's first word, for a
    protocol that shares its EtherType; empty: for all others of the EtherType."""

    ethertype: int
    fields: tuple[GuardedField, ...]
    begins: bytes = b""
    routed: bool = False

    @property
    def words(self) -> int:
        return len(self.fields) + bool(self.begins)


@dataclass(frozen=True, slots=True)
class GuardedField:
    """A field of a network header, of up to eight bytes, and the fields that must have a certain value for it to be
    there."""

    field: Field
    guards: tuple[tuple[GuardedField, int], ...] = ()


def loss_program(losses: Losses) -> Program:
    """Write the program; `assemble` it with the maps "counters", "state" and "flows", as far as it uses them."""
    program = Program()
    _count_offered(program)
    program.mov(_CAUSE, 0)
    if losses.gemodel:
        _step_gemodel(program, losses)
    elif losses.ranges:
        _step_number(program)
    if losses.ranges:
        _ask_pattern(program, losses)
    if losses.loss:
        _find_flow(program, losses)
        _ask_flow(program, losses)
    _finish(program)
    return program


def _count_offered(program: Program) -> None:
    program.mov(_CONTEXT, R1)
    program.load(R2, _CONTEXT, _LEN, 4)
    program.load(R3, _CONTEXT, _VLAN_PRESENT, 4)
    program.jump_if(R3, "==", 0, "untagged")
    program.add(R2, _VLAN_TAG_BYTES)
    program.label("untagged")
    program.store(R10, _SIZE, R2, 8)
    program.map_value(R1, "counters")
    program.mov(R3, 1)
    program.atomic_add(R1, _counter("offered"), R3)
    program.atomic_add(R1, _counter("offered_bytes"), R2)
    # Several frames that the sender's kernel has merged into one count as one: that offloads are still on must show.
    program.load(R2, _CONTEXT, _GSO_SIZE, 4)
    program.jump_if(R2, "==", 0, "single")
    program.atomic_add(R1, _counter("merged"), R3)
    program.label("single")


def _step_number(program: Program) -> None:
    """Load the direction's number of the frame into R8."""
    program.map_value(R1, "state")
    program.mov(R8, 1)
    program.fetch_add(R1, 0, R8)
    program.add(R8, 1)


def _step_gemodel(program: Program, losses: Losses) -> None:
    """Load the direction's number of the frame into R8, and set the cause if the state that the frame meets loses it."""
    into, out, when_bad, when_good = losses.gemodel
    program.map_value(R7, "state")
    program.mov(R5, 0)
    program.label("step again")
    program.load(R0, R7, 0, 8)
    program.mov(R4, R0)  # the word that the frame finds
    program.mov(R8, R0)
    program.rsh(R8, 1)
    program.add(R8, 1)
    _draw(program, R2, R8, fate_hash.absorb(losses.key, fate_hash.TRANSITION))
    program.constant(R3, into)
    program.mov(R1, R4)
    program.and_(R1, 1)
    program.jump_if(R1, "==", 0, "in the good state")
    program.constant(R3, out)
    program.label("in the good state")
    program.jump_if(R2, ">=", R3, "stays in it")
    program.xor(R1, 1)
    program.label("stays in it")
    program.mov(R2, R8)
    program.lsh(R2, 1)
    program.or_(R2, R1)
    program.compare_exchange(R7, 0, R2)
    program.jump_if(R0, "==", R4, "stepped")
    program.add(R5, 1)
    program.jump_if(R5, "<", MAX_TRIES, "step again")
    _count(program, "unsteady")
    program.mov(R0, TC_ACT_UNSPEC)
    program.exit()
    program.label("stepped")
    _draw(program, R2, R8, fate_hash.absorb(losses.key, fate_hash.STATE_LOSS))
    program.constant(R3, when_good)
    program.and_(R4, 1)
    program.jump_if(R4, "==", 0, "was in the good state")
    program.constant(R3, when_bad)
    program.label("was in the good state")
    program.jump_if(R2, ">=", R3, "state asked")
    program.mov(_CAUSE, _counter("gemodel"))
    program.label("state asked")


def _ask_pattern(program: Program, losses: Losses) -> None:
    """Set the cause if the pattern names the number in R8, by binary search."""
    if losses.period:
        program.sub(R8, 1)
        program.mod(R8, losses.period)
        program.add(R8, 1)

    def choose(ranges: tuple[tuple[int, int], ...]) -> None:
        if len(ranges) == 1:
            ((first, last),) = ranges
            program.jump_if(R8, "<", first, "pattern asked")
            program.jump_if(R8, "<=", last, "in the pattern")
            program.jump("pattern asked")
            return
        middle = len(ranges) // 2
        lower = program.new_label("lower")
        program.jump_if(R8, "<", ranges[middle][0], lower)
        choose(ranges[middle:])
        program.label(lower)
        choose(ranges[:middle])

    choose(losses.ranges)
    program.label("in the pattern")
    # Where both lose a frame, the model names Gilbert-Elliott.
    program.jump_if(_CAUSE, "!=", 0, "pattern asked")
    program.mov(_CAUSE, _counter("loss_pattern"))
    program.label("pattern asked")


def _find_flow(program: Program, losses: Losses) -> None:
    """Put the flow's words on the stack."""
    key = _key(losses)
    _read(program, 0, 8)
    _to_upper_48(program, R1)
    program.store(R10, key, R1, 8)
    _read(program, 6, 8)
    program.mov(_TYPE, R1)
    program.and_(_TYPE, 0xFFFF)
    _to_upper_48(program, R1)
    program.store(R10, key + WORD, R1, 8)
    for word in range(2, losses.flow_words):
        program.store(R10, key + word * WORD, 0, 8)
    program.mov(_AT, ETHERNET_HEADER)
    _skip_tags(program)
    program.jump_if(_TYPE, "<", SMALLEST_ETHERTYPE, "flow found")
    _or_into(program, key, _TYPE)
    program.jump_if(_TYPE, "==", IPV4, "IPv4")
    program.jump_if(_TYPE, "==", IPV6, "IPv6")
    ethertypes = dict.fromkeys(flow_key.ethertype for flow_key in losses.flows)
    for ethertype in ethertypes:
        program.jump_if(_TYPE, "==", ethertype, f"protocol {ethertype}")
    program.jump("flow found")
    for ethertype in ethertypes:
        program.label(f"protocol {ethertype}")
        flow_keys = [flow_key for flow_key in losses.flows if flow_key.ethertype == ethertype]
        if flow_keys[0].routed:
            _skip_route(program)
        for flow_key in sorted(
            flow_keys, key=lambda flow_key: not flow_key.begins
        ):  # the one for all others comes last
            _find_protocol_flow(program, flow_key, key)
        program.jump("flow found")
    _find_ip_flow(program, key)
    program.label("flow found")


def _find_protocol_flow(program: Program, flow_key: FlowKey, key: int) -> None:
    other = program.new_label("other")
    word = 2
    if size := len(flow_key.begins):
        _load(program, 0, size, other)
        program.constant(R2, int.from_bytes(flow_key.begins, "big"))
        program.jump_if(R1, "!=", R2, other)
        program.store(R10, key + word * WORD, R1, 8)
        word += 1
    _set_count(program, key, flow_key.words)
    for place, field in enumerate(flow_key.fields, word):
        _read_field(program, field, key + place * WORD)
    if size:
        program.jump("flow found")
        program.label(other)


def _skip_tags(program: Program) -> None:
    """Find the EtherType behind up to two VLAN tags; the kernel may have taken the first of them out of the frame."""
    for tag in range(MAX_TAGS):
        tagged = f"tag {tag}"
        for ethertype in TAGS:
            program.jump_if(_TYPE, "==", ethertype, tagged)
        program.jump("no tag")
        program.label(tagged)
        if tag == MAX_TAGS - 1:
            program.load(R1, _CONTEXT, _VLAN_PRESENT, 4)
            program.jump_if(R1, "!=", 0, "no tag")
        program.mov(R2, _AT)
        program.add(R2, 2)
        _call_load_bytes(program, R2, _READ, 2)
        program.jump_if(R0, "!=", 0, "no tag")  # cut off
        program.load(_TYPE, R10, _READ, 2)
        program.big_endian(_TYPE, 16)
        program.add(_AT, _VLAN_TAG_BYTES)
    program.label("no tag")


def _find_ip_flow(program: Program, key: int) -> None:
    """Put the key of an IP flow on the stack: the protocol number and, for TCP and UDP, the lower port; 0 where absent."""
    program.label("IPv4")
    _set_count(program, key, 2)
    _call_load_bytes(program, _AT, _READ, _IPV4_HEADER)
    program.load(R1, R10, _READ, 1)
    program.mov(R2, R1)
    program.rsh(R2, 4)
    program.jump_if(R2, "!=", 4, "flow found")
    program.load(_TYPE, R10, _READ + 9, 1)
    program.store(R10, key + 2 * WORD, _TYPE, 8)
    # Only a first fragment has ports: the offset is 13 bits of bytes 6 and 7.
    program.load(R2, R10, _READ + 6, 1)
    program.and_(R2, 0x1F)
    program.load(R3, R10, _READ + 7, 1)
    program.or_(R2, R3)
    program.jump_if(R2, "!=", 0, "flow found")
    program.and_(R1, 0x0F)
    program.lsh(R1, 2)
    program.jump_if(R1, "<", _IPV4_HEADER, "flow found")
    program.add(_AT, R1)
    program.jump("transport")

    program.label("IPv6")
    _set_count(program, key, 2)
    _call_load_bytes(program, _AT, _READ, _IPV6_HEADER)
    program.load(R1, R10, _READ, 1)
    program.rsh(R1, 4)
    program.jump_if(R1, "!=", 6, "flow found")
    program.load(_TYPE, R10, _READ + 6, 1)
    program.store(R10, key + 2 * WORD, _TYPE, 8)
    program.add(_AT, _IPV6_HEADER)

    program.label("transport")
    program.jump_if(_TYPE, "==", _TCP, "ports")
    program.jump_if(_TYPE, "!=", _UDP, "flow found")
    program.label("ports")
    _call_load_bytes(program, _AT, _READ, _PORTS)
    program.load(R1, R10, _READ, 2)
    program.big_endian(R1, 16)
    program.load(R2, R10, _READ + 2, 2)
    program.big_endian(R2, 16)
    program.jump_if(R1, "<=", R2, "lower port")
    program.mov(R1, R2)
    program.label("lower port")
    program.store(R10, key + 3 * WORD, R1, 8)


def _skip_route(program: Program) -> None:
    """Move the offset of the network header behind a source route, if there is one."""
    end = program.new_label("route's end")
    for _ in range(MAX_HOPS):
        program.mov(R2, _AT)
        _call_load_bytes(program, R2, _READ, 1)
        program.jump_if(R0, "!=", 0, end)  # cut off
        program.load(R1, R10, _READ, 1)
        program.jump_if(R1, "<", ROUTE_BYTE, end)
        program.add(_AT, 1)
    program.label(end)


def _read_field(program: Program, guarded: GuardedField, place: int) -> None:
    """Put a field's value on the stack; the 0 there stays where the frame does not have the field."""
    absent = program.new_label("absent")
    _check_guards(program, guarded, absent)
    _load_field(program, guarded.field, absent)
    program.store(R10, place, R1, 8)
    program.label(absent)


def _check_guards(program: Program, guarded: GuardedField, absent: str) -> None:
    for guard, value in guarded.guards:
        _check_guards(program, guard, absent)
        if not 0 <= value <= fate_hash.MASK:  # no field has it
            program.jump(absent)
            return
        _load_field(program, guard.field, absent)
        program.constant(R2, value)
        program.jump_if(R1, "!=", R2, absent)


def _load_field(program: Program, field: Field, absent: str) -> None:
    """Load a field's value into R1; jump to `absent` if the frame ends before."""
    _load(program, field.offset, field.width, absent)
    program.constant(R2, field.mask or (1 << 8 * field.width) - 1)
    program.and_(R1, R2)
    program.rsh(R1, field.shift)


def _load(program: Program, offset: int, size: int, absent: str) -> None:
    """Load up to eight bytes of the network header, as a number, into R1; jump to `absent` if the frame ends before."""
    program.store(R10, _READ, 0, 8)
    program.mov(R2, _AT)
    program.add(R2, offset)
    _call_load_bytes(program, R2, _READ + WORD - size, size)
    program.jump_if(R0, "!=", 0, absent)
    program.load(R1, R10, _READ, 8)
    program.big_endian(R1, 64)


def _ask_flow(program: Program, losses: Losses) -> None:
    """Set the cause if the flow's n-th frame is lost."""
    key = _key(losses)
    entry = key - 2 * WORD
    _look_up_flow(program, key)
    program.jump_if(R0, "!=", 0, "flow known")
    _start_flow(program, losses, entry)
    program.map(R1, "flows")
    program.mov(R2, R10)
    program.add(R2, key)
    program.mov(R3, R10)
    program.add(R3, entry)
    program.mov(R4, BPF_NOEXIST)  # another processor may have put it there meanwhile
    program.call(_MAP_UPDATE)
    _look_up_flow(program, key)
    program.jump_if(R0, "!=", 0, "flow known")
    # The table is full. All such frames share one number: they are lost at the right rate, but which frames of a flow
    # are lost depends on the other flows; so they are counted.
    program.map_value(R0, "counters")
    program.mov(R1, 1)
    program.fetch_add(R0, _counter("untold"), R1)
    program.load(R2, R10, entry, 8)
    program.jump("number known")
    program.label("flow known")
    program.mov(R1, 1)
    program.fetch_add(R0, WORD, R1)
    program.load(R2, R0, 0, 8)
    program.label("number known")
    program.add(R1, 1)
    program.constant(R3, fate_hash.GOLDEN)
    program.mul(R1, R3)
    program.add(R1, R2)
    _mix(program, R1, R2, R3)
    program.rsh(R1, 11)
    program.constant(R2, losses.loss)
    program.jump_if(R1, ">=", R2, "flow asked")
    program.mov(_CAUSE, _counter("loss"))
    program.label("flow asked")


def _look_up_flow(program: Program, key: int) -> None:
    """Load the address of the flow's entry into R0, or 0."""
    program.map(R1, "flows")
    program.mov(R2, R10)
    program.add(R2, key)
    program.call(_MAP_LOOKUP)


def _start_flow(program: Program, losses: Losses, entry: int) -> None:
    """Put the entry of a new flow on the stack: the start of its stream of draws, and no frames yet."""
    key = _key(losses)
    program.constant(R1, losses.key)
    program.load(R5, R10, key + WORD, 8)
    program.and_(R5, 0xFFFF)  # the number of its key fields
    for word in range(losses.flow_words):
        if word >= 2:
            program.jump_if(R5, "<=", word - 2, "absorbed")
        program.load(R4, R10, key + word * WORD, 8)
        _absorb(program, R1, R4)
    program.label("absorbed")
    program.mov(R4, fate_hash.LOSS)
    _absorb(program, R1, R4)
    program.store(R10, entry, R1, 8)
    program.store(R10, entry + WORD, 0, 8)


def _finish(program: Program) -> None:
    program.jump_if(_CAUSE, "!=", 0, "lost")
    program.mov(R0, TC_ACT_UNSPEC)
    program.exit()
    program.label("lost")
    program.map_value(R1, "counters")
    program.load(R3, R10, _SIZE, 8)
    program.atomic_add(R1, _counter("lost_bytes"), R3)
    program.add(R1, _CAUSE)
    program.mov(R2, 1)
    program.atomic_add(R1, 0, R2)
    program.mov(R0, TC_ACT_SHOT)
    program.exit()


def _count(program: Program, name: str) -> None:
    program.map_value(R1, "counters")
    program.mov(R2, 1)
    program.atomic_add(R1, _counter(name), R2)


def _counter(name: str) -> int:
    return COUNTERS.index(name) * WORD


def _key(losses: Losses) -> int:
    """Return the offset of the flow's words on the stack."""
    return _READ - losses.flow_words * WORD


def _read(program: Program, offset: int, size: int) -> None:
    """Load bytes of the frame, as a big-endian number of 64 bits, into R1."""
    program.mov(R2, offset)
    _call_load_bytes(program, R2, _READ, size)
    program.load(R1, R10, _READ, 8)
    program.big_endian(R1, 64)


def _call_load_bytes(program: Program, offset: Register, place: int, size: int) -> None:
    """Copy bytes of the frame to the stack; if the frame ends before, they are cleared and R0 is not 0."""
    if offset is not R2:
        program.mov(R2, offset)
    program.mov(R1, _CONTEXT)
    program.mov(R3, R10)
    program.add(R3, place)
    program.mov(R4, size)
    program.call(_SKB_LOAD_BYTES)


def _to_upper_48(program: Program, register: Register) -> None:
    """Clear the lowest 16 bits."""
    program.rsh(register, 16)
    program.lsh(register, 16)


def _set_count(program: Program, key: int, count: int) -> None:
    program.mov(R1, count)
    _or_into(program, key + WORD, R1)


def _or_into(program: Program, place: int, value: Register) -> None:
    program.load(R2, R10, place, 8)
    program.or_(R2, value)
    program.store(R10, place, R2, 8)


# The hash's steps, see `testbed.fates.fate_hash`.


def _mix(program: Program, word: Register, spare: Register, other: Register) -> None:
    """Compute word = mix64(word); the two other registers are lost."""
    for shift, multiplier in ((30, fate_hash.FIRST), (27, fate_hash.SECOND)):
        program.mov(spare, word)
        program.rsh(spare, shift)
        program.xor(word, spare)
        program.constant(other, multiplier)
        program.mul(word, other)
    program.mov(spare, word)
    program.rsh(spare, 31)
    program.xor(word, spare)


def _absorb(program: Program, state: Register, word: Register) -> None:
    """Compute state = absorb(state, word). R2 and R3 are lost."""
    program.constant(R2, fate_hash.GOLDEN)
    program.add(state, R2)
    program.xor(state, word)
    _mix(program, state, R2, R3)


def _draw(program: Program, to: Register, n: Register, start: int) -> None:
    """Compute to = draw(start, n) >> 11. R1 and R3 are lost."""
    program.constant(to, fate_hash.GOLDEN)
    program.mul(to, n)
    program.constant(R1, start)
    program.add(to, R1)
    _mix(program, to, R1, R3)
    program.rsh(to, 11)
