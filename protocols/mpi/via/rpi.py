"""LAM's request progression interface (RPI) on `Device`: the eight functions that the paper implements for VIA (section 4).

LAM's MPI library calls them with its list of requests; what a request is for VIA, and how it progresses, is the RPI's. Here
the device progresses requests by itself when completions come, so `advance` only waits, and these functions show which part
of it does what the paper's did:

| LAM | here | what carries it out |
| --- | --- | --- |
| `_rpi_c2c_init` | `init` | `ViaEndpoint`: protection tag, completion queue, a server for connection requests |
| `_rpi_c2c_addprocs` | `addprocs` | `ViaEndpoint.connect_ranks`: a VI, registered memory and descriptors to each rank |
| `_rpi_c2c_build` | `build` | `Request`, the envelope of a transfer |
| `_rpi_c2c_start` | `start` | `Device.send`, `Device.receive`: RDMA writes, or the list of unexpected messages |
| `_rpi_c2c_advance` | `advance` | completions; the device has handled them |
| `_rpi_c2c_destroy` | `destroy` | `Device.cancel` for one that is still under way |
| `_rpi_c2c_iprobe` | `iprobe` | `Device.probe` |
| `_rpi_c2c_finalize` | `finalize` | `Device.losses`: failures that no request has reported |
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import Enum
from typing import Final

from protocols.core.completion import Completion, Yield
from protocols.mpi.device import Device
from protocols.mpi.mpi_errors import Envelope


class Kind(Enum):
    """Operation of a request: a standard send, a synchronous one, a receive."""

    SEND = "send"
    SSEND = "ssend"
    RECEIVE = "receive"


class State(Enum):
    """State of a request, by LAM's names."""

    INIT = "built"
    ACTIVE = "started"
    DONE = "done"


class Request:
    """A request of LAM's MPI library. rank: the peer's, of a receive also ANY_SOURCE. tag: of a receive also ANY_TAG."""

    __slots__ = ("buffer", "completion", "context", "kind", "rank", "tag")

    def __init__(self, kind: Kind, rank: int, context: int, tag: int, buffer: memoryview) -> None:
        self.kind: Final = kind
        self.rank: Final = rank
        self.context: Final = context
        self.tag: Final = tag
        self.buffer: Final = buffer
        self.completion: Completion[Envelope] | None = None

    @property
    def state(self) -> State:
        if self.completion is None:
            return State.INIT
        return State.DONE if self.completion.done else State.ACTIVE

    def envelope(self) -> Envelope:
        """Return what was sent or received. Raises MPIError if it has failed, RuntimeError if it is not done."""
        if self.completion is None:
            raise RuntimeError("the request has not been started")
        return self.completion.result()


class Rpi:
    """The eight functions, for one rank."""

    def __init__(self, device: Device) -> None:
        self._device = device

    async def init(self) -> None:
        """`_rpi_c2c_init`: be ready for connections. The endpoint has been since it was made."""

    async def addprocs(self, ranks: Collection[int]) -> None:
        """`_rpi_c2c_addprocs`: connect to ranks, if the settings say so (`connect_all`), otherwise with the first message.
        Raises ValueError for a rank outside of the world, which has all of them from the beginning; MPIError if one cannot
        be connected."""
        if unknown := sorted(rank for rank in ranks if not 0 <= rank < self._device.size):
            raise ValueError(f"ranks must be 0 to {self._device.size - 1}, got {unknown}")
        await self._device.connect()

    def build(self, kind: Kind, rank: int, context: int, tag: int, buffer: memoryview) -> Request:
        """`_rpi_c2c_build`: make a request, which `start` begins."""
        return Request(kind, rank, context, tag, buffer)

    def start(self, request: Request) -> None:
        """`_rpi_c2c_start`: begin a request. Raises RuntimeError if it was started before."""
        if request.completion is not None:
            raise RuntimeError("the request was started before")
        device, kind = self._device, request.kind
        if kind is Kind.RECEIVE:
            request.completion = device.receive(request.rank, request.context, request.tag, request.buffer)
        else:
            request.completion = device.send(
                request.rank, request.context, request.tag, request.buffer, kind is Kind.SSEND
            )

    async def advance(self, requests: Sequence[Request], blocks: bool) -> list[Request]:
        """`_rpi_c2c_advance`: return those that are done. blocks: wait for the first if none is."""
        active = [request.completion for request in requests if request.completion is not None]
        if not any(completion.done for completion in active):
            await (_first(active) if blocks and active else Yield())
        return [request for request in requests if request.state is State.DONE]

    def destroy(self, request: Request) -> None:
        """`_rpi_c2c_destroy`: free one. A transfer that has not begun, or a receive without a message, is cancelled."""
        if request.state is State.ACTIVE and request.completion is not None:
            self._device.cancel(request.completion)

    async def iprobe(self, rank: int, context: int, tag: int) -> Envelope | None:
        """`_rpi_c2c_iprobe`: return the envelope of the message that a receive would get; None if there is none yet."""
        found = await self._device.probe(rank, context, tag, wait=False)
        return found.envelope if found is not None else None

    def finalize(self) -> None:
        """`_rpi_c2c_finalize`: end. Raises MPIError for a message that was lost after its send was done."""
        self._device.lost_sends.finish()


def _first(active: Sequence[Completion[Envelope]]) -> Completion[None]:
    """Return a completion of the first that is done."""
    first: Completion[None] = Completion("one of %d requests", len(active))

    def end(_: object) -> None:
        if not first.done:
            first.complete(None)

    for completion in active:
        completion.add_callback(end)
    return first
