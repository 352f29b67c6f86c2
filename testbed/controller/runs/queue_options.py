"""Receive queues of a run: worker processes of shared NICs in mode live, queues of the profile otherwise."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from protocols.core.profile import Profile
from protocols.core.protocol import Instruction, Protocol, select_hash
from testbed.errors import DescriptionError, Problem, UnsupportedError
from testbed.runtime.shared.workers import ReceiveQueues

IN_TURN: Final = "round-robin"
"""Steering that distributes frames over the queues in turn, without a hash."""


def live_queues(count: int, steering: str, bind: bool, protocol: Protocol, name: str, shared: bool) -> ReceiveQueues:
    """Return the receive queues of shared NICs. count: number of queues. steering: the name of a hash of the protocol,
    IN_TURN, or empty for the default hash. bind: pin workers and programs to processors of their own. name: name of
    the protocol. shared: whether any NICs of the run are shared. Raises DescriptionError for a count or steering out of
    range, UnsupportedError if NICs are not shared or the protocol does not support several queues."""
    check_queues(count, steering)
    if count == 1 and not steering:
        return ReceiveQueues()
    if not shared:
        raise UnsupportedError(
            "several receive queues in mode live need shared NICs, which run a process for each: add --nics shared"
        )
    if protocol.split_driver is None or protocol.split_driver.hosts > 1:
        raise UnsupportedError(f"NICs of protocol {name} have one receive queue, got {count}: leave --queues out")
    if steering == IN_TURN:
        return ReceiveQueues(count, (), bind)
    return ReceiveQueues(count, _steering_program(steering, protocol, name), bind)


def with_queues(profile: Profile, count: int, steering: str, protocol: Protocol, name: str) -> Profile:
    """Return the profile with `count` receive queues and the steering, if the options set any; otherwise the profile itself.
    The other arguments are those of `live_queues`. Raises DescriptionError, and UnsupportedError if the profile's firmware
    does not run on the host's cores or the protocol has no hash."""
    check_queues(count, steering)
    if count == 1 and not steering:
        return profile
    if not profile.hosted:
        raise UnsupportedError(
            f"profile {profile.name} cannot have several receive queues: its firmware does not run on the host's cores"
        )
    if steering == IN_TURN:
        return replace(profile, receive_queues=count, round_robin=True)
    _steering_program(steering, protocol, name)
    return replace(profile, receive_queues=count, steering=steering, round_robin=False)


def check_queues(count: int, steering: str) -> None:
    """Check a number of queues, and whether steering is possible. Raises DescriptionError."""
    if not 1 <= count <= 64:
        raise DescriptionError("the run", [Problem("queues", str(count), "1 to 64")])
    if steering and steering != IN_TURN and count == 1:
        raise DescriptionError("the run", [Problem("steering", repr(steering), "only with several queues")])


def _steering_program(steering: str, protocol: Protocol, name: str) -> tuple[Instruction, ...]:
    if not protocol.steering:
        raise UnsupportedError(f"protocol {name} has no hash for steering: use --steering {IN_TURN}")
    if steering and steering not in protocol.steering:
        known = ", ".join([*protocol.steering, IN_TURN])
        raise DescriptionError("the run", [Problem("steering", repr(steering), f"one of {known}")])
    steering_hash = select_hash(protocol.steering, steering)
    assert steering_hash is not None
    return steering_hash.program
