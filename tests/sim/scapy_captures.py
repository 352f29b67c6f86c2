"""Captures read with Scapy, independently of the project's own reader."""

from __future__ import annotations

from pathlib import Path

from scapy.utils import RawPcapNgReader


def read_capture(path: Path) -> list[tuple[str, int, bytes, str]]:
    """Return interface, time in ns, contents and comment of every frame."""
    frames = []
    with RawPcapNgReader(str(path)) as reader:
        for frame, metadata in reader:
            time = (metadata.tshigh << 32) + metadata.tslow
            assert metadata.tsresol == 1_000_000_000
            assert len(frame) == metadata.wirelen
            comments = getattr(metadata, "comments", None) or (
                [metadata.comment] if getattr(metadata, "comment", None) else []
            )
            frames.append((metadata.ifname.decode(), time, frame, b"; ".join(comments).decode()))
    return frames
