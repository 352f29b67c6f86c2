"""Open-MX with one mistake each, for searches that must find it."""

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

    def as_of_this_session(partner: Partner, event: Event, data: memoryview) -> None:
        event.seqnum = event.seqnum & SEQNUM_MASK | partner._next_match & ~SEQNUM_MASK
        receive(partner, event, data)

    patch.setattr(Partner, "receive", as_of_this_session)


def used_session(patch: pytest.MonkeyPatch) -> None:
    original = Partner._begin_sending

    def forgets(partner: Partner, seqnum: int) -> None:
        original(partner, seqnum)
        partner._last_session = 0, 0

    patch.setattr(Partner, "_begin_sending", forgets)


def handle_again(patch: pytest.MonkeyPatch) -> None:
    original = Pulls.begin

    def without_serial(pulls: Pulls, now: int, endpoint: object, command: object) -> None:
        pulls._serial = -1
        original(pulls, now, endpoint, command)  # type: ignore[arg-type]  # as they came

    patch.setattr(Pulls, "begin", without_serial)


def plain_comparison(patch: pytest.MonkeyPatch) -> None:
    take = Partner._take_ack

    def if_greater(partner: Partner, ack: int) -> None:
        if partner._unacked and ack > partner._unacked[0].seqnum:
            take(partner, ack)

    patch.setattr(Partner, "_take_ack", if_greater)


def forgotten_zombie(patch: pytest.MonkeyPatch) -> None:
    on_transmitted = Endpoint.on_transmitted

    def forgets(endpoint: Endpoint, outgoing: Outgoing) -> None:
        on_transmitted(endpoint, outgoing)
        if outgoing.is_zombie and outgoing.request is not None and outgoing.request.peer is not None:
            outgoing.request.peer._unacked.remove(outgoing)

    patch.setattr(Endpoint, "on_transmitted", forgets)


def wrong_byte(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(HASHES, "endpoint", HASHES["myri10ge"])


MUTANTS = [
    Mutant("any session", "a late duplicate of an old session is taken", any_session),
    Mutant("handle again", "a pull's handle is used again while replies to it may still come", handle_again),
    Mutant("forgotten zombie", "a send that is done is not sent again", forgotten_zombie),
]
USED = Mutant("used session", "a session's numbers are used again while its messages may still come", used_session)
WRAP = Mutant("plain comparison", "acknowledgements are compared without their wrap", plain_comparison)
STEERING = Mutant("wrong byte", "the NIC's hash takes another byte of pull replies", wrong_byte)
