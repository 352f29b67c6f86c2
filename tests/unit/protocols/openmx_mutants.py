"""Open-MX with one mistake each, which searches must find."""

from __future__ import annotations

import pytest

from protocols.openmx.endpoint import Endpoint
from protocols.openmx.endpoint_memory import Event
from protocols.openmx.mx_names import SEQNUM_MASK
from protocols.openmx.mx_requests import Outgoing
from protocols.openmx.partners import Partner
from protocols.openmx.pulls import Pulls
from protocols.openmx.steering import HASHES
from tests.unit.protocols.mutants import Mutant


def any_session(patch: pytest.MonkeyPatch) -> None:
    receive = Partner.receive

    def receive_as_of_this_session(partner: Partner, event: Event, data: memoryview) -> None:
        event.seqnum = event.seqnum & SEQNUM_MASK | partner._next_match & ~SEQNUM_MASK
        receive(partner, event, data)

    patch.setattr(Partner, "receive", receive_as_of_this_session)


def used_session(patch: pytest.MonkeyPatch) -> None:
    begin_sending = Partner._begin_sending

    def forget_last_session(partner: Partner, seqnum: int) -> None:
        begin_sending(partner, seqnum)
        partner._last_session = 0, 0

    patch.setattr(Partner, "_begin_sending", forget_last_session)


def handle_again(patch: pytest.MonkeyPatch) -> None:
    begin = Pulls.begin

    def begin_with_the_first_serial(pulls: Pulls, now: int, endpoint: object, command: object) -> None:
        pulls._serial = -1
        begin(pulls, now, endpoint, command)  # type: ignore[arg-type]

    patch.setattr(Pulls, "begin", begin_with_the_first_serial)


def plain_comparison(patch: pytest.MonkeyPatch) -> None:
    take = Partner._take_ack

    def take_if_greater(partner: Partner, ack: int) -> None:
        if partner._unacked and ack > partner._unacked[0].seqnum:
            take(partner, ack)

    patch.setattr(Partner, "_take_ack", take_if_greater)


def forgotten_zombie(patch: pytest.MonkeyPatch) -> None:
    on_transmitted = Endpoint.on_transmitted

    def forget_zombie(endpoint: Endpoint, outgoing: Outgoing) -> None:
        on_transmitted(endpoint, outgoing)
        if outgoing.is_zombie and outgoing.request is not None and outgoing.request.peer is not None:
            outgoing.request.peer._unacked.remove(outgoing)

    patch.setattr(Endpoint, "on_transmitted", forget_zombie)


def wrong_byte(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(HASHES, "endpoint", HASHES["myri10ge"])


MUTANTS = [
    Mutant("any session", "a late duplicate of an old session is accepted", any_session),
    Mutant("handle again", "a pull's handle is reused while replies to it may still come", handle_again),
    Mutant("forgotten zombie", "a completed send is not resent", forgotten_zombie),
]
USED = Mutant("used session", "a session's numbers are reused while its messages may still come", used_session)
WRAP = Mutant("plain comparison", "acknowledgements are compared without their wrap", plain_comparison)
STEERING = Mutant("wrong byte", "the NIC's hash takes another byte of pull replies", wrong_byte)
