"""Programs of an AM-II swarm case: for each endpoint, one program sends requests and one handles arrivals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

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
from tests.sim.am2_swarm_cases import BULK, MEDIUM, NO_REPLY, SHORT, Request

if TYPE_CHECKING:
    from tests.sim.am2_swarm_ledger import Ledger

SHORT_REQUEST, DATA, REPLY, REPLY_DATA, UNSET_HANDLER = 1, 2, 3, 4, 200
"""Numbers of handlers. UNSET_HANDLER: no handler is set."""
NO_ENDPOINT: Final = 60_000
"""Number of an endpoint that does not exist."""
WRONG_TAG: Final = 0xBAD
GUARD: Final = 64
"""Guard bytes after a segment's data, which must not change."""

Target = tuple[int, int, str]
"""(Node, endpoint, defect of the translation)."""
Mapping = tuple[int, int]
"""(Entry of the translation table, number of its mappings); each new mapping has all credits."""
SwarmProgram = Callable[[ActiveMessages, SimNode], Coroutine[Any, Any, None]]


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
        self.ledger: Final = ledger
        self.incarnation: Final = ledger.incarnations[self.name[0]]
        self.rng: Final = source(ledger.case.seed, f"endpoint {self.name}, life {self.incarnation}")
        self.open: Final[dict[int, Mapping]] = {}
        self.lost: Final[Counter[Mapping]] = Counter()
        self.has_sent = False
        self.version = 0
        self.handled = 0
        self._entries: dict[Target, int] = {}
        self._mapped: Counter[int] = Counter()
        self._own_requests: set[int] = set()
        endpoint = self.endpoint
        endpoint.segment = bytearray(ledger.segment_sizes[self.name] + GUARD)
        endpoint.error_handler = self.on_returned
        for number, handler in (
            (SHORT_REQUEST, self.on_short),
            (DATA, self.on_data),
            (REPLY, self.on_reply),
            (REPLY_DATA, self.on_reply_data),
        ):
            endpoint.set_handler(number, handler)
        self._set_tag()
        ledger.endpoints[self.name] = self

    def _set_tag(self) -> None:
        node, endpoint = self.name
        tag = 1_000_000 * self.version + 1_000 * node + 10 * endpoint + 1
        self.endpoint.tag = self.ledger.tags[self.name] = tag

    # Handlers

    def on_short(self, token: Token, serial: int, *arguments: int) -> None:
        request = self._handle_request(token, serial)
        if arguments != words(serial, request.size):
            raise Violation(f"request {serial} arrived with {arguments}")
        self._send_reply(token, serial, request)

    def on_data(self, token: Token, data: memoryview, serial: int) -> None:
        request = self._handle_request(token, serial)
        if data != payload(serial, request.size):
            raise Violation(f"request {serial}: {len(data)} bytes differ from the sent ones")
        self._send_reply(token, serial, request)

    def _handle_request(self, token: Token, serial: int) -> Request:
        fate = self.ledger.on_handled(serial, self.name)
        self.handled += 1
        request = fate.request
        if token.source != (request.source, request.origin) or token.tag != fate.tag or token.is_reply:
            raise Violation(f"request {serial} arrived from {token.source} under tag {token.tag}")
        return request

    def _send_reply(self, token: Token, serial: int, request: Request) -> None:
        if serial % 8 == 0:
            self._try_forbidden_calls(token)
        size = request.reply_size
        if request.reply_form == SHORT:
            token.reply(REPLY, serial, *words(serial, size))
        elif request.reply_form == MEDIUM:
            token.reply_medium(REPLY_DATA, payload(serial + 1, size), serial)
        elif request.reply_form == BULK:
            token.reply_bulk(REPLY_DATA, payload(serial + 1, size), self.ledger.offsets[serial][1], serial)
        if serial % 8 == 0 and request.reply_form != NO_REPLY:
            check_forbidden(lambda: token.reply(REPLY, serial))

    def _try_forbidden_calls(self, token: Token) -> None:
        """Check that a handler can neither send requests nor poll."""
        if self._entries:
            index = next(iter(self._entries.values()))
            check_forbidden(lambda: self.endpoint.try_request(index, SHORT_REQUEST, 0))
        if not self.endpoint.is_empty:
            check_forbidden(self.endpoint.poll)
        if token.is_reply:
            check_forbidden(lambda: token.reply(REPLY, 0))

    def on_reply(self, token: Token, serial: int, *arguments: int) -> None:
        request = self._record_reply(token, serial)
        if arguments != words(serial, request.reply_size):
            raise Violation(f"the reply to request {serial} arrived with {arguments}")

    def on_reply_data(self, token: Token, data: memoryview, serial: int) -> None:
        request = self._record_reply(token, serial)
        if data != payload(serial + 1, request.reply_size):
            raise Violation(f"the reply to request {serial}: {len(data)} bytes differ from the sent ones")

    def _record_reply(self, token: Token, serial: int) -> Request:
        request = self.ledger.on_replied(serial).request
        if serial not in self._own_requests:
            raise Violation(f"a reply to request {serial}, which this incarnation has not sent")
        if token.source != (request.sink, request.endpoint) or not token.is_reply:
            raise Violation(f"the reply to request {serial} arrived from {token.source}")
        if serial % 8 == 0:
            self._try_forbidden_calls(token)
        self.end(serial)
        return request

    def on_returned(self, message: Returned) -> None:
        if message.is_reply:
            is_of_library = not message.handler
            if is_of_library and message.arguments[:2] != (Status.BAD_HANDLER, UNSET_HANDLER):
                raise Violation(f"the library's own reply is returned: {message.arguments}")
            self.ledger.on_reply_returned(message.arguments[2 if is_of_library else 0], message.status)
            return
        serial = message.arguments[0]
        if serial not in self._own_requests:
            raise Violation(f"request {serial} is returned, which this incarnation has not sent")
        self.ledger.on_request_returned(serial, message.status)
        self.end(serial)

    def end(self, serial: int) -> None:
        self.open.pop(serial, None)

    def excuse(self, serial: int) -> None:
        """Give up a request whose end may never be known, and its credit."""
        mapping = self.open.pop(serial, None)
        if mapping is not None:
            self.lost[mapping] += 1
            self.endpoint.wake()

    # Programs

    def until_freed(self, program: SwarmProgram) -> SwarmProgram:
        """Return a program that ends when a call raises RuleError because the endpoint has been freed."""

        async def run(am: ActiveMessages, node: SimNode) -> None:
            try:
                await program(am, node)
            except RuleError:
                if not self.endpoint.is_freed:
                    raise

        return run

    async def serve(self, am: ActiveMessages, node: SimNode) -> None:  # noqa: ARG002
        """Handle messages during this incarnation."""
        case, rng = self.ledger.case, self.rng
        while True:
            await self.endpoint.wait()
            if case.slow and rng.random() < 0.5:
                await node.sleep(rng.below(case.slow))
            await self.endpoint.poll(rng.choice((None, 1, 3)))
            if case.tag_change and self.handled >= case.tag_change:
                self.handled = 0
                self.version += 1
                self._set_tag()

    async def send(self, am: ActiveMessages, node: SimNode) -> None:
        rng, fates = self.rng, self.ledger.fates
        for serial, fate in enumerate(fates):
            request = fate.request
            if (request.source, request.origin) != self.name or fate.is_sent:
                continue
            if rng.random() < 0.3:
                await node.sleep(rng.below(300 * MICROSECOND))
            while not fate.is_sent:
                index = self._map(request)
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
        endpoint, ledger = self.endpoint, self.ledger
        translation = endpoint.translation(index)
        assert translation is not None
        number = Delivery(am.node, am.incarnation, self.name[1], endpoint.outbox.last_request + 1)
        ledger.on_send(number, serial, translation.tag)
        self._own_requests.add(serial)
        handler = UNSET_HANDLER if request.defect == "handler" else SHORT_REQUEST if request.form == SHORT else DATA
        if request.form == SHORT:
            is_sent = endpoint.try_request(index, handler, serial, *words(serial, request.size))
        elif request.form == MEDIUM:
            is_sent = endpoint.try_request_medium(index, handler, payload(serial, request.size), serial)
        else:
            offset = ledger.offsets[serial][0]
            if request.defect == "segment":
                offset = ledger.segment_sizes[request.sink, request.endpoint] + GUARD + 1
            is_sent = endpoint.try_request_bulk(index, handler, payload(serial, request.size), offset, serial)
        if not is_sent:
            ledger.on_not_sent(number)
            return False
        self.open[serial] = mapping = self._mapping(index)
        maximum = endpoint.library.settings.credits
        has_its_credits = (
            ledger.incarnations[request.sink] == 1 and (request.sink, request.endpoint) not in ledger.freed
        )
        if has_its_credits and sum(open_mapping == mapping for open_mapping in self.open.values()) > maximum:
            raise Violation(
                f"endpoint {self.name} has {list(self.open)} in flight, and {maximum} credits for each destination"
            )
        return True

    def _mapping(self, index: int) -> Mapping:
        return index, self._mapped[index]

    def _map(self, request: Request) -> int:
        """Return the request's translation table entry; map it again if its tag has changed, and sometimes at random,
        even with pending replies."""
        node, endpoint = remote = request.sink, request.endpoint
        name = EndpointName(node, NO_ENDPOINT if request.defect == "endpoint" else endpoint)
        tag = WRONG_TAG if request.defect == "tag" else self.ledger.tags[remote]
        key = (node, endpoint, request.defect if request.defect in ("tag", "endpoint") else "")
        index = self._entries.get(key)
        if index is not None:
            translation = self.endpoint.translation(index)
            assert translation is not None
            if translation.tag == tag and self.rng.random() >= 0.1:
                return index
            self.endpoint.unmap(index)
        index = self._entries[key] = self.endpoint.map_any(name, tag)
        self._mapped[index] += 1
        return index

    def pending(self) -> list[str]:
        """Return a sentence for each difference from the initial state."""
        endpoint, sentences = self.endpoint, []
        if not self.has_sent:
            sentences.append("has not sent all its requests")
        if self.open:
            sentences.append(f"has unfinished requests {list(self.open)}")
        if not endpoint.is_empty:
            sentences.append("has unhandled messages")
        for index in self._entries.values():
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
            sentences.append("has changed guard bytes after its segment's data")
        return [f"endpoint {self.name} {sentence}" for sentence in sentences]


def check_forbidden(action: object) -> None:
    """Check that a handler cannot make this call. Raises Violation if it can."""
    assert callable(action)
    try:
        action()
    except RuleError:
        return
    raise Violation(f"a handler may call {action}")
