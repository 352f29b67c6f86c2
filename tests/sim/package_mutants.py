"""Mutants of the package that `testbed protocol new` writes, each of which the named conformance check must find."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final


@dataclass(frozen=True, slots=True)
class PackageMutant:
    """check: the check that finds it. fault: in a sentence. file: path in the package. original, mutated: its text."""

    check: str
    fault: str
    file: str
    original: str
    mutated: str

    def __str__(self) -> str:
        return self.check

    def apply(self, package: Path) -> None:
        """Put the fault into a written package."""
        path = package / self.file
        text = path.read_text()
        assert text.count(self.original) == 1, f"{self.file} has {self.original!r} {text.count(self.original)} times"
        path.write_text(text.replace(self.original, self.mutated))


MUTANTS: Final = (
    PackageMutant(
        "self-sends", "messages to itself are given to the NIC, which cannot send to itself", "host.py",
        "        if destination == self.rank:", "        if destination == -1:",
    ),
    PackageMutant(
        "wildcards", "all messages are matched in the first context", "host.py",
        "arrive_complete(card.peer, card.context, card.tag", "arrive_complete(card.peer, 0, card.tag",
    ),
    PackageMutant(
        "wildcards", "a receive of one source is matched before an older one of any source", "host.py",
        "            self.matching.arrive_complete(card.peer, card.context",
        "            self.matching._posted.get(card.context, []).sort(key=lambda receive: receive.source < 0)\n"
        "            self.matching.arrive_complete(card.peer, card.context",
    ),
    PackageMutant(
        "burst", "messages that wait for a descriptor wait forever", "host.py",
        "        self._outgoing.advance()\n", "",
    ),
    PackageMutant(
        "burst", "the memory of a message stays pinned", "host.py", "        self._memory.unpin(address)\n", "",
    ),
    PackageMutant(
        "cancel", "a cancelled receive completes, and stays in the queue", "host.py",
        "    def on_completion(self, index: int) -> None:",
        "    def receive(self, source, context, tag, buffer, completion):\n"
        "        from protocols.mpi.mpi_errors import CANCELLED\n"
        "        super().receive(source, context, tag, buffer, completion)\n"
        "        completion.cancel = lambda: completion.complete(CANCELLED)\n"
        "        return True\n\n"
        "    def on_completion(self, index: int) -> None:",
    ),
    PackageMutant(
        "truncation", "a message longer than its buffer is truncated without an error", "host.py",
        '            self.matching.arrive_complete(card.peer, card.context, card.tag, b"".join(parts))\n',
        '            data = b"".join(parts)\n'
        "            arrival = self.matching.arrive(card.peer, card.context, card.tag, len(data))\n"
        "            arrival.buffer[:] = data[: len(arrival.buffer)]\n"
        "            arrival.length = len(arrival.buffer)\n"
        "            self.matching.complete(arrival)\n",
    ),
    PackageMutant(
        "mtu", "the payload of a card is computed without the four bytes of the check", "firmware.py",
        "adapter.mtu + ETHERNET - FRAME_SIZE", "adapter.mtu + ETHERNET - FRAME_SIZE + 4",
    ),
    PackageMutant(
        "deadlines", "a card is resent, and its deadline is not moved", "firmware.py",
        "        self._timers.set(peer.number, now + self._settings.resend)",
        "        self._timers.set(peer.number, message.index + self._settings.resend)",
    ),
    PackageMutant(
        "restarts", "numbers continue those of the peer's previous incarnation", "firmware.py",
        "        peer.sending = peer.expected = 0\n        for message", "        for message",
    ),
    PackageMutant(
        "restarts", "a message to a restarted peer is dropped, and its sender is not notified", "firmware.py",
        "            self._return(message.index, Descriptor(peer.number, message.acknowledged, outcome=Outcome.LOST))\n",
        "            self._owned.remove(message.index)\n",
    ),
    PackageMutant(
        "restarts", "the parts of a message whose sender has restarted are put before its next one", "host.py",
        "        self._partial_messages.pop(peer, None)\n", "",
    ),
    PackageMutant(
        "restarts", "synchronous messages to a peer that has restarted wait forever", "host.py",
        "        self.matching.fail_transfers(peer, _restarted(peer), sends=())\n", "",
    ),
    PackageMutant(
        "restarts", "cards of a previous incarnation are accepted", "firmware.py",
        "        if standing is not Standing.CURRENT:", "        if standing is not Standing.CURRENT and kind != KIND_CARD:",
    ),
    PackageMutant(
        "restarts", "the descriptor of a lost message is never freed", "host.py",
        "        self._free.append(index)\n",
        "        if returned.outcome == Outcome.DONE:\n            self._free.append(index)\n",
    ),
    PackageMutant(
        "restarts", "the memory of a lost message stays pinned", "host.py",
        "        self._memory.unpin(address)\n",
        "        if returned.outcome == Outcome.DONE:\n            self._memory.unpin(address)\n",
    ),
    PackageMutant(
        "restarts", "memory of cards that reported a restart is not reused", "host.py",
        "        self._post_buffer(index)\n        if returned.outcome == Outcome.DONE:\n",
        "        if returned.outcome == Outcome.DONE:\n            self._post_buffer(index)\n",
    ),
    PackageMutant(
        "fates", "a duplicate card is accepted as a new one", "firmware.py",
        "        if number == peer.expected:", "        if number in (peer.expected, peer.expected - 1):",
    ),
    PackageMutant(
        "swarm", "the check is not verified", "codec.py",
        "    if crc32(rest, crc32(raw[:36])) != check:", "    if False and check:",
    ),
)  # fmt: skip
LIVE_MUTANT: Final = PackageMutant(
    "parity", "frames hold incarnations of 16 bits, and those of the wall clock are larger", "firmware.py",
    "        own, incarnation = self._adapter.address, self._peers.incarnation\n",
    "        own, incarnation = self._adapter.address, self._peers.incarnation\n        assert incarnation < 1 << 16\n",
)  # fmt: skip
