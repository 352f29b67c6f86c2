"""LAM's request progression interface (RPI) on `Device`: the eight functions that the paper implements for VIA (section 4).

LAM's MPI library calls these functions with its list of requests, and they make the requests progress on VIA. Here the
device makes progress by itself when completions arrive, so `advance` only waits. The functions show which part of the device
corresponds to which function of LAM:

| LAM | here | implemented by |
| --- | --- | --- |
| `_rpi_c2c_init` | `init` | `ViaEndpoint`: protection tag, completion queue, a server for connection requests |
| `_rpi_c2c_addprocs` | `addprocs` | `ViaEndpoint.connect_ranks`: a VI, registered memory and descriptors to each rank |
| `_rpi_c2c_build` | `build` | `Request`, the envelope of a transfer |
| `_rpi_c2c_start` | `start` | `Device.send`, `Device.receive`: RDMA writes, or the list of unexpected messages |
| `_rpi_c2c_advance` | `advance` | completions, which the device has handled |
| `_rpi_c2c_destroy` | `destroy` | `Device.cancel`, for a request in progress |
| `_rpi_c2c_iprobe` | `iprobe` | `Device.probe` |
| `_rpi_c2c_finalize` | `finalize` | `Device.lost_sends`: failures that no request has reported |
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import Enum
from typing import Final

from protocols.core.completion import Completion, Yield
from protocols.mpi.device import Device
from protocols.mpi.mpi_errors import Envelope


class Kind(Enum):
    """Operation of a request: a standard send, a synchronous send, or a receive."""

    SEND = "send"
    SSEND = "ssend"
    RECEIVE = "receive"


class State(Enum):
    """State of a request, by LAM's names."""

    INIT = "built"
    ACTIVE = "started"
    DONE = "done"


class Request:
    """A request of LAM's MPI library. rank: the peer's; for a receive, may be ANY_SOURCE. tag: for a receive, may be
    ANY_TAG."""

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
        """Return the envelope of the message. Raises MPIError if the request has failed, RuntimeError if it is not done."""
        if self.completion is None:
            raise RuntimeError("the request has not been started")
        return self.completion.result()


class Rpi:
    """The eight functions of LAM's RPI, for one rank."""

    def __init__(self, device: Device) -> None:
        self._device = device

    async def init(self) -> None:
        """`_rpi_c2c_init`: prepare for connections. Does nothing here: the endpoint's constructor has prepared them."""

    async def addprocs(self, ranks: Collection[int]) -> None:
        """`_rpi_c2c_addprocs`: connect to all ranks, if the setting `connect_all` is true; otherwise the first message to a
        rank connects. ranks: only checked, since the ranks of a run are fixed. Raises ValueError for a rank that does not
        exist, MPIError if a rank cannot be connected."""
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
        """`_rpi_c2c_advance`: return the requests that are done, including those that were done before. If none is, other
        tasks run first; blocks: they run until one is done, if any request has been started."""
        active = [request.completion for request in requests if request.completion is not None]
        if not any(completion.done for completion in active):
            await (_first_of(active) if blocks and active else Yield())
        return [request for request in requests if request.state is State.DONE]

    def destroy(self, request: Request) -> None:
        """`_rpi_c2c_destroy`: free a request. A queued transfer, or a receive without a message, is cancelled."""
        if request.state is State.ACTIVE and request.completion is not None:
            self._device.cancel(request.completion)

    async def iprobe(self, rank: int, context: int, tag: int) -> Envelope | None:
        """`_rpi_c2c_iprobe`: return the envelope of the message that a receive would match; None if there is none yet."""
        probe_result = await self._device.probe(rank, context, tag, wait=False)
        return probe_result.envelope if probe_result is not None else None

    def finalize(self) -> None:
        """`_rpi_c2c_finalize`: end the use of the device. Raises MPIError if messages were lost after their sends were
        done."""
        self._device.lost_sends.finish()


def _first_of(active: Sequence[Completion[Envelope]]) -> Completion[None]:
    """Return a completion that completes with the first of several."""
    first: Completion[None] = Completion("one of %d requests", len(active))

    def complete_first(_: object) -> None:
        if not first.done:
            first.complete(None)

    for completion in active:
        completion.add_callback(complete_first)
    return first
