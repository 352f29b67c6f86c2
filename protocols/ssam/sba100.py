"""The SBA-100: an output FIFO, an input FIFO, and the kernel's traps that move cells between the FIFOs and buffers.

Section 3.2: the interface moves cells to and from the fibre and checks them; it has no DMA and no segmentation. The
input FIFO has 292 cells; a cell that finds it full is lost. Section 3.3.2: a process names a connection and an offset
into its buffers; the kernel checks both, and looks up the circuit.

`Sba100` has the input FIFO and the alarm. A `Process` is a process that has opened the device: `write`, `read` and
`write_read` are the traps; `call_write` and `call_read` are the slow path, system calls on the device file (section
3.4.2). Each takes time of the core. A cell occupies the input FIFO until the core has read it.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from protocols.atm.cell import CELL, ETHERNET, HEADER, PAYLOAD, circuit, circuit_of, header, is_intact, nodes_of
from protocols.atm.fields import ETHERTYPE
from protocols.core.firmware import Adapter, Firmware, FirmwareActions
from protocols.core.host_work import HostWork
from protocols.ssam.cells import SEQUENCE_NUMBERS, Message, unpack, with_crc
from protocols.ssam.counters import Counters
from protocols.ssam.settings import MAX_WINDOW, Settings

CELLS: Final = 0
"""Completion: a cell has arrived."""
ALARM: Final = 1
"""Completion: the alarm has expired. Doorbell ALARM + n sets it to the time-out times 2 ** n."""
BATCH: Final = 16
"""Maximum cells of one read trap (section 3.4.3)."""
SLOT_SIZE: Final = 56
"""Bytes of a cell's slot in the buffers, padded as in the FIFOs."""
SEND_BUFFERS_SIZE: Final = (2 * MAX_WINDOW + 1) * SLOT_SIZE
"""Bytes of a connection's send buffers: requests, kept answers, and one cell for control messages."""
RECEIVE_BUFFERS: Final = 2 * MAX_WINDOW
"""Cells of a connection's receive buffers: the requests of a window, and the answers to a window. With the send
buffers, they are the 4w cells of section 3.3.1."""

WRITE_TRAP, READ_TRAP, WRITE_READ_TRAP = "write trap", "read trap", "write-read trap"
"""Work on the host: a trap into the kernel and its return. A write trap includes pushing the cell; a read trap does not
include pulling cells (CELL_READ)."""
CELL_READ: Final = "read cell"
"""Pull a cell out of the input FIFO by a trap, find the process's buffer, store it and check the interface's flags."""
WRITE_CALL, READ_CALL = "write call", "read call"
"""Work on the host: a system call of the driver. A read does not include pulling a cell (CELL_CALL)."""
CELL_CALL: Final = "read cell by call"
"""Pull a cell out of the input FIFO by a system call."""
KINDS: Final = (WRITE_TRAP, READ_TRAP, WRITE_READ_TRAP, CELL_READ, WRITE_CALL, READ_CALL, CELL_CALL)
"""Kinds of the kernel's work on the host's core (tables 1 and 2)."""

Batch = list[tuple[int, Message]]
"""Messages that one trap delivers, each with its connection."""


class TrapError(Exception):
    """The kernel has refused a trap or a connection: there is no such connection, the offset is outside its buffers, or
    the connection cannot be opened."""


class _Circuit:
    """The kernel's state of a connection. node: the peer's number. head: Ethernet and cell header of its frames.
    memory: its send buffers."""

    __slots__ = ("head", "memory", "node")

    def __init__(self, node: int, head: bytes) -> None:
        self.node: Final = node
        self.head: Final = head
        self.memory: Final = bytearray(SEND_BUFFERS_SIZE)


class Sba100(Firmware):
    """A node's interface and its kernel. program: the process of the node's program, which is notified of cells, and
    for which the kernel accepts connections; other processes poll, and open connections themselves."""

    def __init__(
        self, adapter: Adapter, nic: FirmwareActions, work: HostWork, settings: Settings, counters: Counters
    ) -> None:
        """work: the host's cores, on which the traps run."""
        self.adapter: Final = adapter
        self.work: Final = work
        self.settings: Final = settings
        self.counters: Final = counters
        self._alarm: int | None = None
        self.program: Final = Process(self)
        self._node_count = len(adapter.addresses)
        self._nic = nic
        self._input: deque[bytes] = deque()
        self._reads: deque[int] = deque()  # times at which the core finishes reading the cells of a trap
        self._owners: dict[bytes, tuple[Process, int]] = {}  # process and connection, by the header of cells

    @property
    def deadline(self) -> int | None:
        """Time at which the alarm expires, or None."""
        return self._alarm

    @property
    def has_cells(self) -> bool:
        """Whether the input FIFO has a cell, as the interface's count register shows."""
        return bool(self._input)

    def receive(self, now: int, frame: bytes) -> None:
        cell = frame[ETHERNET:]
        while len(cell) > CELL:
            self._arrive(now, cell[:CELL])
            cell = cell[CELL:]
        self._arrive(now, cell)

    def on_doorbell(self, now: int, index: int) -> None:
        """Set the alarm; see ALARM."""
        if index >= ALARM:
            self._alarm = now + (self.settings.timeout << index - ALARM)

    def on_timer(self, now: int) -> None:  # noqa: ARG002
        self._alarm = None
        self._nic.post_completion(ALARM)

    def counter_values(self) -> dict[str, int]:
        return self.counters.counter_values()

    def pending_work(self) -> list[str]:
        waiting = len(self._input)
        return [f"{waiting} cells wait in the input FIFO"] if waiting else []

    def _arrive(self, now: int, cell: bytes) -> None:
        counters, reads = self.counters, self._reads
        while reads and reads[0] <= now:
            reads.popleft()
        process, _ = self._owners.get(cell[:HEADER], (None, 0))
        if (len(cell) != CELL or process is None) and not is_intact(cell):
            counters.bad_headers += 1
        elif len(self._input) + len(reads) >= self.settings.input_fifo:
            counters.overruns += 1
        else:
            self._input.append(cell)
            if self.program.is_watched and process in (self.program, None):
                self.program.is_watched = False
                self._nic.post_completion(CELLS)

    # The kernel.

    def assign(self, process: Process, node: int, connection: int) -> bytes:
        """Assign the circuits to and from a node to a process; return the header of frames to the node. connection: id
        of the process's connection. Raises TrapError if another process has the circuits."""
        local, addresses = self.adapter.number, self.adapter.addresses
        owner, _ = self._owners.setdefault(header(circuit(node, local, self._node_count)), (process, connection))
        if owner is not process:
            raise TrapError(f"no connection to node {node}: another process of this node has it")
        return (
            addresses[node]
            + addresses[local]
            + ETHERTYPE.to_bytes(2, "big")
            + header(circuit(local, node, self._node_count))
        )

    def push(self, node: int, frame: bytes) -> None:
        """Put a cell into the output FIFO."""
        self.counters.cells_written += 1
        if node == self.adapter.number:
            self._arrive(self.work.reached, frame[ETHERNET:])
        else:
            self._nic.send(frame)

    def pull(self, max_cells: int, kind: str) -> None:
        """Read cells from the input FIFO, and store each in the buffers of its circuit's process. kind: kind of the
        work per cell."""
        counters, cells, work = self.counters, self._input, self.work
        for _ in range(min(max_cells, len(cells))):
            cell = cells.popleft()
            work.spend(kind)
            self._reads.append(work.reached)
            counters.cells_read += 1
            owner = self._owners.get(cell[:HEADER]) or self._accept(cell)
            if owner is None:
                counters.no_circuit += 1
                continue
            message = unpack(cell[HEADER:])
            if message is None:
                counters.bad_checks += 1
            else:
                process, connection = owner
                if len(process.stored) >= RECEIVE_BUFFERS and not process.has_buffer(connection):
                    counters.no_buffer += 1
                else:
                    process.stored.append((connection, message))

    def _accept(self, cell: bytes) -> tuple[Process, int] | None:
        """Open the program's connection for a cell's circuit. Returns None if the circuit does not lead to this node,
        or if the program has too many connections."""
        ends = nodes_of(circuit_of(cell), self._node_count)
        if ends is None or ends[1] != self.adapter.number:
            return None
        try:
            return self.program, self.program.connect(ends[0])
        except TrapError:
            return None


class Process:
    """A process that has opened the interface: its connections, their buffers, and its traps. A connection's id is an
    index of the process's table, so that a process cannot access connections of other processes. Messages for a process
    are stored for its next read, whichever process reads the FIFO.

    is_watched: whether the process is notified of the next cell. stored: messages in the receive buffers, with their
    connections.
    """

    def __init__(self, device: Sba100) -> None:
        self.device: Final = device
        self.is_watched = False
        self.stored: Batch = []
        self._circuits: list[_Circuit] = []
        self._by_node: dict[int, int] = {}

    @property
    def has_cells(self) -> bool:
        """Whether a read trap may deliver messages."""
        return self.device.has_cells or bool(self.stored)

    def connect(self, node: int) -> int:
        """Return the id of the connection to a node; open it if necessary. Raises TrapError if too many are open, or if
        another process of this node has the connection."""
        existing = self._by_node.get(node)
        if existing is not None:
            return existing
        limit = self.device.settings.connections
        if len(self._circuits) >= limit:
            raise TrapError(
                f"no connection to node {node}: a process has {limit} connections at most (setting connections)"
            )
        number = len(self._circuits)
        self._circuits.append(_Circuit(node, self.device.assign(self, node, number)))
        self._by_node[node] = number
        return number

    def node_of(self, connection: int) -> int:
        """Return the node of a connection."""
        return self._circuits[connection].node

    def memory(self, connection: int) -> bytearray:
        """Return a connection's send buffers, which the kernel shares with the process."""
        return self._circuits[connection].memory

    def has_buffer(self, connection: int) -> bool:
        """Whether a connection has a free receive buffer. It may have none if other processes have read the FIFO and
        this process has not."""
        return sum(number == connection for number, _ in self.stored) < RECEIVE_BUFFERS

    def write(self, connection: int, offset: int) -> None:
        """Send the cell at an offset of a connection's send buffers. Raises TrapError for an invalid connection or
        offset."""
        self._push(connection, offset, WRITE_TRAP)

    def read(self) -> Batch:
        """Return the received messages, at most BATCH. Without cells, no work is charged here: the profile has the time
        of an unsuccessful poll."""
        if not self.has_cells:
            return []
        self.device.work.spend(READ_TRAP)
        return self._pull(BATCH, CELL_READ)

    def write_read(self, connection: int, offset: int) -> Batch:
        """Send a cell and return the received messages, in one trap. Raises as `write`."""
        self._push(connection, offset, WRITE_READ_TRAP)
        return self._pull(BATCH, CELL_READ)

    def call_write(self, connection: int, offset: int) -> None:
        """Send a cell by the system call write(2). Raises as `write`."""
        self._push(connection, offset, WRITE_CALL)

    def call_read(self) -> Batch:
        """Return at most one message, by the system call read(2)."""
        self.device.work.spend(READ_CALL)
        return self._pull(1, CELL_CALL)

    def _push(self, connection: int, offset: int, kind: str) -> None:
        """Check connection and offset, and put the cell into the output FIFO. kind: kind of the work."""
        if not 0 <= connection < len(self._circuits):
            raise TrapError(f"no connection {connection}: the process has {len(self._circuits)}")
        if offset % SLOT_SIZE or not 0 <= offset <= SEND_BUFFERS_SIZE - SLOT_SIZE:
            raise TrapError(
                f"offset must be a multiple of {SLOT_SIZE} from 0 to {SEND_BUFFERS_SIZE - SLOT_SIZE}, got {offset}"
            )
        self.device.work.spend(kind)
        circuit = self._circuits[connection]
        self.device.push(circuit.node, circuit.head + with_crc(circuit.memory[offset : offset + PAYLOAD]))

    def _pull(self, max_messages: int, kind: str) -> Batch:
        """Read cells from the FIFO, and return at most `max_messages` messages that are stored for this process. kind:
        of the work per cell."""
        self.device.pull(max_messages - len(self.stored), kind)
        delivered, self.stored = self.stored[:max_messages], self.stored[max_messages:]
        return delivered


def request_offset(number: int) -> int:
    """Return the offset of a request's cell in the send buffers."""
    return number % MAX_WINDOW * SLOT_SIZE


def answer_offset(number: int) -> int:
    """Return the offset of the kept answer to a request in the send buffers."""
    return (MAX_WINDOW + number % MAX_WINDOW) * SLOT_SIZE


CONTROL_OFFSET: Final = 2 * MAX_WINDOW * SLOT_SIZE
assert SEQUENCE_NUMBERS % MAX_WINDOW == 0, "a sequence number must determine its slot"
