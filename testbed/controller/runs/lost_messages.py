"""Messages of a run that were lost without an error, or sent without a receive: files in the folder of a repetition.

Each rank appends to them in its own process when its program has ended. The run's verdict notes their contents.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from protocols.mpi.device import Device
from testbed.runtime.journal import UnbufferedLines, read

UNDELIVERED: Final = "undelivered.jsonl"
"""Messages that did not arrive although their sends were complete, and whose senders got no error, since they had ended or
made no further call that involves the receiver."""

MESSAGE_COUNTS: Final = "message-counts.jsonl"
"""Numbers of messages that each rank has sent and received, by peer."""

_MAX_PAIRS: Final = 3  # of ranks, each with a note of its own


def record_undelivered(folder: Path, rank: str, sentence: str) -> None:
    """Append one undelivered message. Raises UnwritableError."""
    with closing(UnbufferedLines(folder / UNDELIVERED)) as lines:
        lines.write({"node": rank, "what": sentence})


def undelivered_messages(folder: Path) -> list[str]:
    """Format the undelivered messages of all repetitions in a run's folder."""
    return [
        f"{line['node']}: {line['what']}; no call of the program could report it"
        for repetition in _repetitions(folder)
        for line in read(repetition / UNDELIVERED)
    ]


def record_message_counts(folder: Path, names: Sequence[str], device: Device) -> None:
    """Append the counts of a rank whose program has ended without an error. names: of all ranks, by number. Raises
    UnwritableError."""
    failed = device.lost_sends.destinations
    sent = {names[peer]: count for peer, count in device.sent.items() if count and peer not in failed}
    received = {names[peer]: count for peer, count in device.received.items()}
    with closing(UnbufferedLines(folder / MESSAGE_COUNTS)) as lines:
        lines.write({"rank": names[device.rank], "sent": sent, "received": received})


def unreceived_messages(folder: Path) -> list[str]:
    """Format the messages that no receive took, of all repetitions in a run's folder. Only messages between ranks that both
    ended without an error are known, and no messages to a rank to which a send failed."""
    return [note for repetition in _repetitions(folder) for note in _describe_unreceived(repetition)]


def _describe_unreceived(repetition: Path) -> Iterator[str]:
    ranks: dict[str, Mapping[str, Any]] = {line["rank"]: line for line in read(repetition / MESSAGE_COUNTS)}
    unreceived: Counter[tuple[str, str]] = Counter()
    for sender, counts in ranks.items():
        for receiver, sent in counts["sent"].items():
            if receiver in ranks:
                unreceived[sender, receiver] = sent - ranks[receiver]["received"].get(sender, 0)
    pairs = [(pair, count) for pair, count in unreceived.most_common() if count > 0]
    for (sender, receiver), count in pairs[:_MAX_PAIRS]:
        messages = "1 message" if count == 1 else f"{count:,} messages"
        yield f"{sender} sent {messages} to {receiver} that no receive took"
    if more := pairs[_MAX_PAIRS:]:
        yield f"{sum(count for _, count in more):,} messages of {len(more):,} other pairs of ranks were not received, either"


def _repetitions(folder: Path) -> list[Path]:
    """Return the folders of a run's repetitions."""
    return sorted(folder.glob("repeat-*"), key=lambda path: int(path.name.partition("-")[2])) or [folder]
