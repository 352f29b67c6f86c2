"""Programs of an AM-II swarm case: for each endpoint, one sends its requests and one handles what arrives."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from protocols.active_messages.am_errors import Returned, RuleError, Status
from protocols.active_messages.endpoint_names import EndpointName
from protocols.am2 import page as layout
from protocols.am2.host.bundle import Bundle
from protocols.am2.host.library import ActiveMessages
from protocols.am2.host.token import Token
from protocols.am2.receiver import Delivery
from testbed.controller.conformance.message_swarm import payload
from testbed.controller.conformance.network_faults import MICROSECOND
from testbed.controller.conformance.trials import Violation
from testbed.engine.sources import source
from testbed.sim.sim_node import SimNode
from tests.sim.am2_swarm_cases import BULK, MEDIUM, NOTHING, SHORT, Request

if TYPE_CHECKING:
    from tests.sim.am2_swarm_ledger import Ledger

WORDS, DATA, ANSWER, ANSWER_DATA, UNSET_HANDLER = 1, 2, 3, 4, 200
"""Numbers of handlers. UNSET_HANDLER: no handler is set."""
NO_ENDPOINT: Final = 60_000
"""Number of an endpoint that does not exist."""
WRONG_TAG: Final = 0xBAD
GUARD: Final = 64
"""Guard bytes behind a segment's data, which must not change."""

Target = tuple[int, int, str]
"""A node, its endpoint, and what is wrong with the translation."""
Mapping = tuple[int, int]
"""An entry of the translation table, and the number of its mappings: each new mapping has all credits."""


def words(serial: int, count: int) -> tuple[int, ...]:
    """Return the words of a short message that follow its serial number."""
    return tuple([serial * 1_000_003 + number & 0xFFFF_FFFF for number in range(count)])


class SwarmEndpoint:
    """Endpoint of one incarnation of its node's NIC.

    open: requests without a known end, and their translation-table entries. lost: credits that cannot return, by entry.
    """

    def __init__(self, ledger: Ledger, bundle: Bundle) -> None:
        self.endpoint: Final = bundle.allocate_endpoint()
        self.name: Final = tuple(self.endpoint.name)
        self.world: Final = ledger
        self.incarnation: Final = ledger.incarnations[self.name[0]]
        self.rng: Final = source(ledger.case.seed, f"endpoint {self.name}, life {self.incarnation}")
        self.open: Final[dict[int, Mapping]] = {}
        self.lost: Final[Counter[Mapping]] = Counter()
        self.has_sent = False
        self.version = 0
        self.handled = 0
        self._places: dict[Target, int] = {}
        self._mapped: Counter[int] = Counter()
        self._mine: set[int] = set()
        endpoint = self.endpoint
        endpoint.segment = bytearray(ledger.rooms[self.name] + GUARD)
        endpoint.error_handler = self.on_returned
        for number, handler in (
            (WORDS, self.words),
            (DATA, self.data),
            (ANSWER, self.answer),
            (ANSWER_DATA, self.answer_data),
        ):
            endpoint.set_handler(number, handler)
        self._set_tag()
        ledger.talkers[self.name] = self

    def _set_tag(self) -> None:
        node, endpoint = self.name
        tag = 1_000_000 * self.version + 1_000 * node + 10 * endpoint + 1
        self.endpoint.tag = self.world.tags[self.name] = tag

    # Handlers.

    def words(self, token: Token, serial: int, *arguments: int) -> None:
        request = self._handle_request(token, serial)
        if arguments != words(serial, request.size):
            raise Violation(f"request {serial} came as {arguments}")
        self._send_reply(token, serial, request)

    def data(self, token: Token, data: memoryview, serial: int) -> None:
        request = self._handle_request(token, serial)
        if data != payload(serial, request.size):
            raise Violation(f"request {serial}: {len(data)} bytes are not what was sent")
        self._send_reply(token, serial, request)

    def _handle_request(self, token: Token, serial: int) -> Request:
        fate = self.world.handles(serial, self.name)
        self.handled += 1
        request = fate.request
        if token.source != (request.source, request.origin) or token.tag != fate.tag or token.is_reply:
            raise Violation(f"request {serial} came from {token.source} under tag {token.tag}")
        return request

    def _send_reply(self, token: Token, serial: int, request: Request) -> None:
        if serial % 8 == 0:
            self._break_rules(token)
        size = request.answered
        if request.answer == SHORT:
            token.reply(ANSWER, serial, *words(serial, size))
        elif request.answer == MEDIUM:
            token.reply_medium(ANSWER_DATA, payload(serial + 1, size), serial)
        elif request.answer == BULK:
            token.reply_bulk(ANSWER_DATA, payload(serial + 1, size), self.world.offsets[serial][1], serial)
        if serial % 8 == 0 and request.answer != NOTHING:
            check_refused(lambda: token.reply(ANSWER, serial))

    def _break_rules(self, token: Token) -> None:
        """A handler may not send requests, and may not poll."""
        if self._places:
            index = next(iter(self._places.values()))
            check_refused(lambda: self.endpoint.try_request(index, WORDS, 0))
        if not self.endpoint.is_empty:
            check_refused(self.endpoint.poll)
        if token.is_reply:
            check_refused(lambda: token.reply(ANSWER, 0))

    def answer(self, token: Token, serial: int, *arguments: int) -> None:
        request = self._answer(token, serial)
        if arguments != words(serial, request.answered):
            raise Violation(f"the reply to request {serial} came as {arguments}")

    def answer_data(self, token: Token, data: memoryview, serial: int) -> None:
        request = self._answer(token, serial)
        if data != payload(serial + 1, request.answered):
            raise Violation(f"the reply to request {serial}: {len(data)} bytes are not what was sent")

    def _answer(self, token: Token, serial: int) -> Request:
        request = self.world.is_replied(serial).request
        if serial not in self._mine:
            raise Violation(f"a reply to request {serial}, which this incarnation has not sent")
        if token.source != (request.sink, request.endpoint) or not token.is_reply:
            raise Violation(f"the reply to request {serial} came from {token.source}")
        if serial % 8 == 0:
            self._break_rules(token)
        self.end(serial)
        return request

    def on_returned(self, message: Returned) -> None:
        if message.is_reply:
            is_of_library = not message.handler
            if is_of_library and message.arguments[:2] != (Status.BAD_HANDLER, UNSET_HANDLER):
                raise Violation(f"the library's own reply is returned: {message.arguments}")
            self.world.on_reply_returned(message.arguments[2 if is_of_library else 0], message.status)
            return
        serial = message.arguments[0]
        if serial not in self._mine:
            raise Violation(f"request {serial} is returned, which this incarnation has not sent")
        self.world.on_request_returned(serial, message.status)
        self.end(serial)

    def end(self, serial: int) -> None:
        self.open.pop(serial, None)

    def excuse(self, serial: int) -> None:
        """Give up a request whose end may never be known, and the credit that it holds."""
        mapping = self.open.pop(serial, None)
        if mapping is not None:
            self.lost[mapping] += 1
            self.endpoint.wake()

    # Programs.

    async def serve(self, am: ActiveMessages, node: SimNode) -> None:  # noqa: ARG002
        """Handle messages during this incarnation."""
        case, rng = self.world.case, self.rng
        while True:
            await self.endpoint.wait()
            if case.slow and rng.random() < 0.5:
                await node.sleep(rng.below(case.slow))
            await self.endpoint.poll(rng.choice((None, 1, 3)))
            if case.changing and self.handled >= case.changing:
                self.handled = 0
                self.version += 1
                self._set_tag()

    async def send(self, am: ActiveMessages, node: SimNode) -> None:
        rng, fates = self.rng, self.world.fates
        for serial, fate in enumerate(fates):
            request = fate.request
            if (request.source, request.origin) != self.name or fate.is_sent:
                continue
            if rng.random() < 0.3:
                await node.sleep(rng.below(300 * MICROSECOND))
            while not fate.is_sent:
                index = self._place(request)
                is_waiting = self._mapping(index) in self.open.values()
                if self._has_lost(index) and not self.endpoint.credits(index) and not is_waiting:
                    break  # no credit will ever return
                if self._try(am, index, serial, request):
                    fate.is_sent = True
                else:
                    await self.endpoint.wait_for_room(index)
        self.has_sent = True

    def _has_lost(self, index: int) -> bool:
        """Return whether the destination may have lost credits for good."""
        return bool(self.lost[self._mapping(index)])

    def _try(self, am: ActiveMessages, index: int, serial: int, request: Request) -> bool:
        endpoint, ledger = self.endpoint, self.world
        translation = endpoint.translation(index)
        assert translation is not None
        number = Delivery(am.node, am.incarnation, self.name[1], endpoint.outbox.last_request + 1)
        ledger.sends(number, serial, translation.tag)
        self._mine.add(serial)
        handler = UNSET_HANDLER if request.wrong == "handler" else WORDS if request.form == SHORT else DATA
        if request.form == SHORT:
            is_sent = endpoint.try_request(index, handler, serial, *words(serial, request.size))
        elif request.form == MEDIUM:
            is_sent = endpoint.try_request_medium(index, handler, payload(serial, request.size), serial)
        else:
            offset = ledger.offsets[serial][0]
            if request.wrong == "segment":
                offset = ledger.rooms[request.sink, request.endpoint] + GUARD + 1
            is_sent = endpoint.try_request_bulk(index, handler, payload(serial, request.size), offset, serial)
        if not is_sent:
            ledger.does_not_send(number)
            return False
        self.open[serial] = mapping = self._mapping(index)
        maximum = endpoint.library.settings.credits
        has_its_credits = (
            ledger.incarnations[request.sink] == 1 and (request.sink, request.endpoint) not in ledger.freed
        )
        if has_its_credits and sum(other == mapping for other in self.open.values()) > maximum:
            raise Violation(
                f"endpoint {self.name} has {list(self.open)} in flight, and {maximum} credits for each destination"
            )
        return True

    def _mapping(self, index: int) -> Mapping:
        return index, self._mapped[index]

    def _place(self, request: Request) -> int:
        """Return the request's translation-table entry, mapped anew if its tag has changed, and at random even with
        replies due."""
        node, endpoint = remote = request.sink, request.endpoint
        name = EndpointName(node, NO_ENDPOINT if request.wrong == "endpoint" else endpoint)
        tag = WRONG_TAG if request.wrong == "tag" else self.world.tags[remote]
        key = (node, endpoint, request.wrong if request.wrong in ("tag", "endpoint") else "")
        index = self._places.get(key)
        if index is not None:
            translation = self.endpoint.translation(index)
            assert translation is not None
            if translation.tag == tag and self.rng.random() >= 0.1:
                return index
            self.endpoint.unmap(index)
        index = self._places[key] = self.endpoint.map_any(name, tag)
        self._mapped[index] += 1
        return index

    def left(self) -> list[str]:
        """Describe each difference from the initial state, a sentence each."""
        endpoint, sentences = self.endpoint, []
        if not self.has_sent:
            sentences.append("has not sent all its requests")
        if self.open:
            sentences.append(f"waits for the ends of requests {list(self.open)}")
        if not endpoint.is_empty:
            sentences.append("has unhandled messages")
        for index in self._places.values():
            if endpoint.credits(index) != endpoint.library.settings.credits and not self._has_lost(index):
                translation = endpoint.translation(index)
                sentences.append(f"has {endpoint.credits(index)} credits for {translation}")
        page = endpoint.inbox.page if endpoint.inbox.page is not None else endpoint.backing
        busy_slots = [
            slot
            for slot in range(layout.SLOTS)
            if page[layout.SLOT_OFFSETS[slot]] not in (layout.FREE, layout.ANSWERED)
        ]
        if busy_slots:
            sentences.append(f"has slots {busy_slots} that are not free")
        segment = endpoint.segment
        if segment is None or any(segment[-GUARD:]):
            sentences.append("has changed guard bytes behind its segment's data")
        return [f"endpoint {self.name} {sentence}" for sentence in sentences]


def check_refused(act: object) -> None:
    """Check that a handler is refused this call. Raises Violation if it is allowed."""
    assert callable(act)
    try:
        act()
    except RuleError:
        return
    raise Violation(f"a handler may do {act}")
