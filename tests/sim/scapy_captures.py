"""Captures read back, by Scapy: nothing of this goes through our own writer."""

from __future__ import annotations

from pathlib import Path

from scapy.utils import RawPcapNgReader


def read_capture(path: Path) -> list[tuple[str, int, bytes, str]]:
    """Interface, time in ns, frame and comment of every frame."""
    out = []
    with RawPcapNgReader(str(path)) as reader:
        for frame, about in reader:
            time = (about.tshigh << 32) + about.tslow
            assert about.tsresol == 1_000_000_000
            assert len(frame) == about.wirelen
            comments = getattr(about, "comments", None) or ([about.comment] if getattr(about, "comment", None) else [])
            out.append((about.ifname.decode(), time, frame, b"; ".join(comments).decode()))
    return out
