"""Changes that a rule makes to a frame: fields set, bits of a field flipped, checks recomputed.

A check is a checksum or CRC in a header that covers the header and the following bytes. Checks from IPv4 to TCP are in
`checksums`; a protocol's check is computed by its codec (`header_fields.Fields.register`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from testbed.errors import TestbedError
from testbed.fates import fate_hash
from testbed.fates.checksums import update_internet_checksums
from testbed.fates.header_fields import FRAME_LENGTH, Field, Fields, Located, UnknownFieldError, locate
from testbed.fates.records import PASS, Fate


class ChangeError(TestbedError, ValueError):
    """Invalid change: the field is unknown or read-only, or the value does not fit."""

    exit_code = 2


def check_changes(fields: Fields, fate: Fate) -> None:
    """Check that each field that a fate changes may be changed, and that its value fits. Raises ChangeError."""
    for name, value in fate.sets:
        field = changeable_field(fields, name, mend=fate.mend)
        if not 0 <= value <= field.max_value:
            raise ChangeError(f"{name} must be 0 to {field.max_value:,} (0x{field.max_value:x}), got {value:,}")
    if fate.within:
        field = changeable_field(fields, fate.within, mend=fate.mend)
        if fate.flips > (bits := field.max_value.bit_length()):
            raise ChangeError(f"{fate.flips} bits of {fate.within} cannot be flipped: it has {bits}")


def changeable_field(fields: Fields, name: str, *, mend: bool) -> Field:
    """Return a field that a rule may change. mend: whether checks are recomputed afterwards. Raises ChangeError."""
    try:
        field = fields[name]
    except UnknownFieldError as error:
        raise ChangeError(str(error)) from None
    if name == FRAME_LENGTH:
        raise ChangeError(f"{name} is the frame's length, not a field of it: it cannot be changed")
    if mend and name in fields.checks():
        raise ChangeError(f"{name} is computed from the rest of the frame: it can be changed with keep-check only")
    return field


def resolve(fate: Fate, fields: Fields, frame: bytes, located: Located, start: int, n: int) -> Fate:
    """Resolve a fate for one frame: choose the bits to flip, and leave out fields that the frame does not have.

    start: start of the flow's stream `fate_hash.BITS`. n: number of the frame in its flow. The result is PASS if the fate
    has no effect on the frame. Raises ChangeError.
    """
    if fate.sets or fate.within:
        check_changes(fields, fate)
        sets = tuple([pair for pair in fate.sets if fields.position(pair[0])(frame, located) >= 0])
        fate = replace(fate, sets=sets)
    if fate.flips and not fate.positions:
        if fate.within:
            bit_positions = _bits_of(fields, fate.within, frame, located)
            positions = tuple(
                [bit_positions[chosen] for chosen in choose_indexes(start, n, fate.flips, len(bit_positions))]
            )
        else:
            positions = choose_bits(start, n, fate.flips, len(frame))
        fate = replace(fate, flips=len(positions), positions=positions, within="")
    return fate if replace(fate, mend=False) != PASS else PASS


def apply_changes(fate: Fate, fields: Fields, frame: bytes, located: Located) -> bytes:
    """Apply a resolved fate's changes: set fields, flip bits, mend checks."""
    if fate.sets:
        raw = bytearray(frame)
        # All fields are located before any is set: the value of one may determine which other fields the frame has.
        writes = [(name, value, fields.position(name)(frame, located)) for name, value in fate.sets]
        for name, value, offset in writes:
            if offset >= 0:
                _write(raw, fields[name], value, offset)
        frame = bytes(raw)
    if fate.positions:
        frame = flip_bits(frame, fate.positions)
    return mend_checks(fields, frame) if fate.mend else frame


def mend_checks(fields: Fields, frame: bytes) -> bytes:
    """Recompute the checks of a frame: those of IP and above, and that of the protocol with the frame's EtherType."""
    located = locate(frame)
    raw = bytearray(frame)
    update_internet_checksums(raw, located)
    return fields.mend(bytes(raw), located)


def _write(raw: bytearray, field: Field, value: int, offset: int) -> None:
    end = offset + field.width
    mask = field.mask or (1 << 8 * field.width) - 1
    other_bits = int.from_bytes(raw[offset:end], "big") & ~mask
    raw[offset:end] = (other_bits | value << field.shift).to_bytes(field.width, "big")


def _bits_of(fields: Fields, name: str, frame: bytes, located: Located) -> list[int]:
    """List the positions of a field's bits in a frame; empty if the frame does not have the field."""
    offset = fields.position(name)(frame, located)
    if offset < 0:
        return []
    field = fields[name]
    width = 8 * field.width
    mask = field.mask or (1 << width) - 1
    return [8 * offset + bit for bit in range(width) if mask >> width - 1 - bit & 1]


def choose_bits(start: int, n: int, flips: int, size: int) -> tuple[int, ...]:
    """Choose the positions of the bits to flip, in order. start, n: see `resolve`. flips: number of bits. size: bytes of the
    frame."""
    return choose_indexes(start, n, flips, size * 8)


def choose_indexes(start: int, n: int, flips: int, bits: int) -> tuple[int, ...]:
    """Choose `flips` of `bits` bits; return their indexes in order. start, n: see `resolve`.

    The draws are those of a stream that starts at the n-th draw of the flow's stream. If a bit has already been chosen, the
    next free one is taken.
    """
    stream = fate_hash.draw(start, n)
    chosen: set[int] = set()
    for number in range(1, min(flips, bits) + 1):
        bit = fate_hash.below(fate_hash.draw(stream, number), bits)
        while bit in chosen:
            bit = (bit + 1) % bits
        chosen.add(bit)
    return tuple(sorted(chosen))


def flip_bits(frame: bytes, positions: tuple[int, ...]) -> bytes:
    """Flip bits of a frame. Bit 0 is the most significant bit of the first byte; positions after the end are ignored."""
    raw = bytearray(frame)
    for position in positions:
        if position < len(raw) * 8:
            raw[position >> 3] ^= 0x80 >> (position & 7)
    return bytes(raw)


__all__: Final = [
    "ChangeError",
    "apply_changes",
    "changeable_field",
    "check_changes",
    "choose_bits",
    "flip_bits",
    "mend_checks",
    "resolve",
]
