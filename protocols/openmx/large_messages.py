"""Messages that are pulled, in an endpoint's library: those above the eager limit, and all synchronous ones.

A sender registers the message's bytes as a region and sends a rendezvous with the region's number. The receiver's
driver pulls the region once a receive matches, and the receiver's library then sends a notice. If all regions or pulls
are in use, messages wait.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from protocols.openmx.endpoint_memory import Event, Op
from protocols.openmx.mx_names import Status
from protocols.openmx.mx_requests import Incoming, LargeSend, Outgoing, Request
from protocols.openmx.partners import Partner

if TYPE_CHECKING:
    from protocols.openmx.endpoint import Endpoint
    from protocols.openmx.incoming_messages import IncomingMessages

_REGIONS: Final = 256
"""Maximum number of an endpoint's messages that wait to be pulled."""


class _Pull(NamedTuple):
    """A pull in progress. address: address of the receive's pinned buffer. serial: distinguishes it from earlier pulls with
    the same number, whose completions may still arrive."""

    incoming: Incoming
    receive: Request
    address: int
    serial: int


class LargeMessages:
    """The large messages of one endpoint, in both directions."""

    def __init__(self, endpoint: Endpoint, incoming: IncomingMessages) -> None:
        """incoming: completes receives."""
        self._endpoint: Final = endpoint
        self._incoming: Final = incoming
        self._memory: Final = endpoint.memory
        self._sends: dict[int, LargeSend] = {}  # by region
        self._turns = [0] * _REGIONS
        self._next_region = 0
        self._unregistered: deque[tuple[Partner, Outgoing]] = deque()  # messages that wait for a region
        self._pulls: dict[int, _Pull] = {}  # by number
        self._serial = 0  # of the last pull
        self._free_numbers = list(range(endpoint.settings.pulls))
        self._unpulled: deque[tuple[Incoming, Request]] = deque()  # messages that wait for a pull number

    def pending_work(self) -> list[str]:
        """Describe each message that waits to be pulled."""
        return [f"{send.request}, until {send.partner} has pulled it" for send in self._sends.values()]

    def fail_messages(self, partner: Partner, status: Status) -> None:
        """Fail the messages of a partner that are in progress."""
        for waiting in [waiting for waiting in self._unregistered if waiting[0] is partner]:
            self._unregistered.remove(waiting)
            assert waiting[1].request is not None
            self._endpoint.settle(waiting[1].request, status)
        for region, send in list(self._sends.items()):
            if send.partner is partner:
                self._end_send(region, send, status)
        for waiting_pull in [waiting for waiting in self._unpulled if waiting[0].source is partner]:
            self._unpulled.remove(waiting_pull)
            self._incoming.finish(*waiting_pull, status)
        for number, pull in list(self._pulls.items()):
            if pull.incoming.source is partner:
                command = partner.command(Op.CLOSE_PULL)
                command.number = number
                self._endpoint.write(command)
                self._end_pull(number, 0)
                self._incoming.finish(pull.incoming, pull.receive, status)

    # Sends.

    def send(self, to: Partner, request: Request, match_info: int) -> None:
        """Send a message's rendezvous, once a region is free."""
        outgoing = Outgoing(Op.RNDV, request, match_info, len(request.buffer))
        if len(self._sends) >= _REGIONS:
            self._unregistered.append((to, outgoing))
        else:
            self._register(to, outgoing)

    def on_notify(self, partner: Partner, event: Event) -> None:
        """Handle the notice that a message was pulled."""
        send = self._sends.get(event.number)
        if send is not None and send.partner is partner and send.turn == event.turn:
            self._end_send(event.number, send, Status.SUCCESS)

    def _register(self, to: Partner, outgoing: Outgoing) -> None:
        """Register the bytes of a message, and send its rendezvous."""
        while self._next_region in self._sends:
            self._next_region = (self._next_region + 1) % _REGIONS
        region = self._next_region
        self._next_region = (region + 1) % _REGIONS
        self._turns[region] = turn = (self._turns[region] + 1) & 0xFF
        request = outgoing.request
        assert request is not None
        address = self._memory.pin_page(request.buffer) if len(request.buffer) else 0
        self._sends[region] = LargeSend(request, to, address, turn)
        outgoing.number, outgoing.turn = region, turn
        command = to.command(Op.REGISTER)
        command.number, command.turn = region, turn
        command.length, command.address = outgoing.length, address
        self._endpoint.write(command)
        to.submit(outgoing)

    def _end_send(self, region: int, send: LargeSend, status: Status) -> None:
        """Finish a message that was pulled or failed."""
        del self._sends[region]
        command = send.partner.command(Op.DEREGISTER)
        command.number = region
        self._endpoint.write(command)
        if send.address:
            self._memory.unpin(send.address)
        self._endpoint.settle(send.request, status)
        if self._unregistered:
            self._register(*self._unregistered.popleft())

    # Receives.

    def pull(self, incoming: Incoming, receive: Request) -> None:
        """Pull a message into its receive's buffer, once a pull number is free."""
        size = min(len(receive.buffer), incoming.length)
        if not size:
            self.notify(incoming)
            self._incoming.finish(incoming, receive, Status.SUCCESS)
        elif not self._free_numbers:
            self._unpulled.append((incoming, receive))
        else:
            number = self._free_numbers.pop()
            address = self._memory.pin_page(receive.buffer[:size], 1)
            self._serial = serial = (self._serial + 1) & 0xFFFF
            self._pulls[number] = _Pull(incoming, receive, address, serial)
            source = incoming.source
            command = source.command(Op.PULL)
            command.number, command.word, command.session = number, serial, source.session
            command.match, command.turn = incoming.region, incoming.turn
            command.length, command.address = size, address
            self._endpoint.write(command)

    def on_pull_done(self, number: int, serial: int, code: int) -> None:
        """Handle the end of a pull. code: its status."""
        pull = self._pulls.get(number)
        if pull is None or pull.serial != serial:
            return
        incoming, receive, status = pull.incoming, pull.receive, Status(code)
        if status is Status.ENDPOINT_UNREACHABLE:
            # The pull gave up. The sender waits for the notice and may send nothing more; a new session reports the loss.
            incoming.source.lose("unreachable", status)
            incoming.source.reconnect()
            return
        self._end_pull(number, min(len(receive.buffer), incoming.length))
        if status is Status.SUCCESS:
            self.notify(incoming)
        self._incoming.finish(incoming, receive, status)

    def notify(self, incoming: Incoming) -> None:
        """Send the notice that a message was pulled."""
        notice = Outgoing(Op.NOTIFY, None, 0, incoming.length)
        notice.number, notice.turn = incoming.region, incoming.turn
        incoming.source.submit(notice)

    def _end_pull(self, number: int, received: int) -> None:
        """Release a pull's number and memory. received: bytes written to the memory."""
        self._memory.unpin(self._pulls.pop(number).address, received)
        self._free_numbers.append(number)
        if self._unpulled:
            self.pull(*self._unpulled.popleft())
