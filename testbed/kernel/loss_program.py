"""BPF program that decides which frames of one direction are lost, exactly as `testbed.fates` decides it.

It runs on every incoming frame of an interface, before the filter that redirects the frame. It returns TC_ACT_SHOT for a
lost frame, and TC_ACT_UNSPEC, which leaves the frame to the next filter, for any other frame. For each frame:

1. The frame is counted as offered.
2. Gilbert-Elliott and the pattern are evaluated for the frame's number in the direction, if they are configured.
3. Independent loss, if it is configured, is drawn for the frame's flow, which is determined as in `fates.flows.flow_of`. The
   flow's entry in the map of flows has the start of its stream of draws and its number of frames.

Frames may arrive on several processors at once. Numbers are incremented atomically, so that every frame gets a different
number. The state of Gilbert-Elliott and the number are in one word, which is updated by compare-and-exchange.

There are three maps. "counters" has one value, the words that `COUNTERS` names; it may outlive the program. "state" has one
value, the direction's number of frames (with Gilbert-Elliott: twice that number, plus 1 in the bad state). "flows" maps the
words of a flow (see `flow_program`) to the start of its stream and its number of frames.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from testbed.fates import fate_hash
from testbed.kernel.bpf import BPF_NOEXIST
from testbed.kernel.bpf_assembler import R0, R1, R2, R3, R4, R5, R7, R8, R10, Program, Register
from testbed.kernel.flow_program import (
    CAUSE,
    CONTEXT,
    SIZE,
    VLAN_PRESENT,
    VLAN_TAG_BYTES,
    WORD,
    FlowKey,
    find_flow,
    flow_offset,
    flow_words,
)

TC_ACT_UNSPEC, TC_ACT_SHOT = -1, 2

COUNTERS: Final = (
    "offered", "offered_bytes", "loss", "gemodel", "loss_pattern", "lost_bytes", "untold", "unsteady", "merged",
)  # fmt: skip
"""Names of the words in the value of "counters"; `loss_classifier.Counters` explains them."""

# Helper functions and fields of the context: the kernel's include/uapi/linux/bpf.h (struct __sk_buff).
_MAP_LOOKUP, _MAP_UPDATE = 1, 2
_LEN, _GSO_SIZE = 0, 176

MAX_ATTEMPTS: Final = 32
"""Maximum number of attempts to update Gilbert-Elliott's word. One fails if another processor updates it meanwhile."""


@dataclass(frozen=True, slots=True)
class Losses:
    """Losses of one direction, in the numbers of `fate_hash`.

    key: of the direction. loss: threshold of the independent loss; 0: none. gemodel: thresholds of p, r, 1-h and 1-k; empty:
    none. ranges: the numbers in the pattern, as ordered pairs of first and last. period: period of the pattern in frames; 0:
    it is not repeated. flows: the flow keys of the protocols that have one.
    """

    key: int
    loss: int = 0
    gemodel: tuple[int, ...] = ()
    ranges: tuple[tuple[int, int], ...] = ()
    period: int = 0
    flows: tuple[FlowKey, ...] = ()

    @property
    def flow_words(self) -> int:
        """Number of words of a key in the map of flows."""
        return flow_words(self.flows)


def loss_program(losses: Losses) -> Program:
    """Build the program. `assemble` it with the maps "counters", "state" (for gemodel and ranges) and "flows" (for loss)."""
    program = Program()
    _count_offered(program)
    program.mov(CAUSE, 0)
    if losses.gemodel:
        _step_gemodel(program, losses)
    elif losses.ranges:
        _step_number(program)
    if losses.ranges:
        _check_pattern(program, losses)
    if losses.loss:
        find_flow(program, losses.flows)
        _check_flow(program, losses)
    _finish(program)
    return program


def _count_offered(program: Program) -> None:
    program.mov(CONTEXT, R1)
    program.load(R2, CONTEXT, _LEN, 4)
    program.load(R3, CONTEXT, VLAN_PRESENT, 4)
    program.jump_if(R3, "==", 0, "untagged")
    program.add(R2, VLAN_TAG_BYTES)
    program.label("untagged")
    program.store(R10, SIZE, R2, 8)
    program.map_value(R1, "counters")
    program.mov(R3, 1)
    program.atomic_add(R1, _counter("offered"), R3)
    program.atomic_add(R1, _counter("offered_bytes"), R2)
    # A GSO frame counts as one frame, and is also counted separately: an offload is on that should be off.
    program.load(R2, CONTEXT, _GSO_SIZE, 4)
    program.jump_if(R2, "==", 0, "single")
    program.atomic_add(R1, _counter("merged"), R3)
    program.label("single")


def _step_number(program: Program) -> None:
    """Load the frame's number in the direction into R8."""
    program.map_value(R1, "state")
    program.mov(R8, 1)
    program.fetch_add(R1, 0, R8)
    program.add(R8, 1)


def _step_gemodel(program: Program, losses: Losses) -> None:
    """Load the frame's number in the direction into R8, and set the cause if Gilbert-Elliott loses the frame. The frame's
    fate depends on the state before its step."""
    to_bad, to_good, loss_when_bad, loss_when_good = losses.gemodel
    program.map_value(R7, "state")
    program.mov(R5, 0)
    program.label("step again")
    program.load(R0, R7, 0, 8)
    program.mov(R4, R0)  # the word before the step
    program.mov(R8, R0)
    program.rsh(R8, 1)
    program.add(R8, 1)
    _draw(program, R2, R8, fate_hash.absorb(losses.key, fate_hash.TRANSITION))
    program.constant(R3, to_bad)
    program.mov(R1, R4)
    program.and_(R1, 1)
    program.jump_if(R1, "==", 0, "in the good state")
    program.constant(R3, to_good)
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
    program.jump_if(R5, "<", MAX_ATTEMPTS, "step again")
    _count(program, "unsteady")
    program.mov(R0, TC_ACT_UNSPEC)
    program.exit()
    program.label("stepped")
    _draw(program, R2, R8, fate_hash.absorb(losses.key, fate_hash.STATE_LOSS))
    program.constant(R3, loss_when_good)
    program.and_(R4, 1)
    program.jump_if(R4, "==", 0, "was in the good state")
    program.constant(R3, loss_when_bad)
    program.label("was in the good state")
    program.jump_if(R2, ">=", R3, "state asked")
    program.mov(CAUSE, _counter("gemodel"))
    program.label("state asked")


def _check_pattern(program: Program, losses: Losses) -> None:
    """Set the cause if the number in R8 is in the pattern, by binary search."""
    if losses.period:
        program.sub(R8, 1)
        program.mod(R8, losses.period)
        program.add(R8, 1)

    def search(ranges: tuple[tuple[int, int], ...]) -> None:
        if len(ranges) == 1:
            ((first, last),) = ranges
            program.jump_if(R8, "<", first, "pattern asked")
            program.jump_if(R8, "<=", last, "in the pattern")
            program.jump("pattern asked")
            return
        middle = len(ranges) // 2
        lower = program.new_label("lower")
        program.jump_if(R8, "<", ranges[middle][0], lower)
        search(ranges[middle:])
        program.label(lower)
        search(ranges[:middle])

    search(losses.ranges)
    program.label("in the pattern")
    # If both lose a frame, the cause is Gilbert-Elliott, as in the model.
    program.jump_if(CAUSE, "!=", 0, "pattern asked")
    program.mov(CAUSE, _counter("loss_pattern"))
    program.label("pattern asked")


def _check_flow(program: Program, losses: Losses) -> None:
    """Set the cause if independent loss loses the flow's n-th frame."""
    key = flow_offset(losses.flows)
    entry = key - 2 * WORD
    _look_up_flow(program, key)
    program.jump_if(R0, "!=", 0, "flow known")
    _start_flow(program, losses, entry)
    program.map(R1, "flows")
    program.mov(R2, R10)
    program.add(R2, key)
    program.mov(R3, R10)
    program.add(R3, entry)
    program.mov(R4, BPF_NOEXIST)  # another processor may have added the flow meanwhile
    program.call(_MAP_UPDATE)
    _look_up_flow(program, key)
    program.jump_if(R0, "!=", 0, "flow known")
    # The table is full. The frames of all flows without an entry are numbered and counted together: they are lost with the
    # configured probability, but which of them are lost depends on other flows.
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
    program.mov(CAUSE, _counter("loss"))
    program.label("flow asked")


def _look_up_flow(program: Program, key: int) -> None:
    """Load the address of the flow's entry into R0; 0 if it has none."""
    program.map(R1, "flows")
    program.mov(R2, R10)
    program.add(R2, key)
    program.call(_MAP_LOOKUP)


def _start_flow(program: Program, losses: Losses, entry: int) -> None:
    """Put the entry of a new flow on the stack: the start of its stream of draws, and no frames yet."""
    key = flow_offset(losses.flows)
    program.constant(R1, losses.key)
    program.load(R5, R10, key + WORD, 8)
    program.and_(R5, 0xFFFF)  # number of key fields
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
    program.jump_if(CAUSE, "!=", 0, "lost")
    program.mov(R0, TC_ACT_UNSPEC)
    program.exit()
    program.label("lost")
    program.map_value(R1, "counters")
    program.load(R3, R10, SIZE, 8)
    program.atomic_add(R1, _counter("lost_bytes"), R3)
    program.add(R1, CAUSE)
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


# The hash's steps, see `testbed.fates.fate_hash`.


def _mix(program: Program, word: Register, scratch: Register, scratch_2: Register) -> None:
    """Compute word = mix64(word); the scratch registers are clobbered."""
    for shift, multiplier in ((30, fate_hash.MULTIPLIER_1), (27, fate_hash.MULTIPLIER_2)):
        program.mov(scratch, word)
        program.rsh(scratch, shift)
        program.xor(word, scratch)
        program.constant(scratch_2, multiplier)
        program.mul(word, scratch_2)
    program.mov(scratch, word)
    program.rsh(scratch, 31)
    program.xor(word, scratch)


def _absorb(program: Program, state: Register, word: Register) -> None:
    """Compute state = absorb(state, word). R2 and R3 are clobbered."""
    program.constant(R2, fate_hash.GOLDEN)
    program.add(state, R2)
    program.xor(state, word)
    _mix(program, state, R2, R3)


def _draw(program: Program, to: Register, n: Register, start: int) -> None:
    """Compute to = draw(start, n) >> 11. R1 and R3 are clobbered."""
    program.constant(to, fate_hash.GOLDEN)
    program.mul(to, n)
    program.constant(R1, start)
    program.add(to, R1)
    _mix(program, to, R1, R3)
    program.rsh(to, 11)
