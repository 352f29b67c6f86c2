"""Decoding of a terminal's input to names of keys: "a", "up", "tab", "ctrl-c"."""

from __future__ import annotations

from typing import Final

_SEQUENCES: Final = {
    "[A": "up", "[B": "down", "[C": "right", "[D": "left", "OA": "up", "OB": "down", "OC": "right", "OD": "left",
    "[H": "home", "[F": "end", "OH": "home", "OF": "end", "[1~": "home", "[4~": "end", "[7~": "home", "[8~": "end",
    "[5~": "page-up", "[6~": "page-down", "[3~": "delete", "[Z": "shift-tab",
}  # fmt: skip
_CONTROLS: Final = {
    "\x03": "ctrl-c", "\x08": "backspace", "\x7f": "backspace", "\t": "tab", "\r": "enter", "\n": "enter",
    "\x15": "ctrl-u", "\x01": "home", "\x05": "end",
}  # fmt: skip
_MAX_SEQUENCE: Final = 8  # characters of an escape sequence


class Keys:
    """Incremental decoder of key names."""

    def __init__(self) -> None:
        self._incomplete = b""

    @property
    def is_incomplete(self) -> bool:
        """Whether a sequence is incomplete. If no data follows soon, it was the escape key: call `feed` without data."""
        return bool(self._incomplete)

    def feed(self, data: bytes) -> list[str]:
        """Return the keys that are complete with this data. Empty data ends an incomplete sequence."""
        received = self._incomplete + data
        text, incomplete = _decode(received)
        self._incomplete = incomplete if data else b""
        keys: list[str] = []
        while text:
            if text[0] != "\x1b":
                keys.append(_CONTROLS.get(text[0], text[0]))
                text = text[1:]
                continue
            length = _sequence_length(text)
            if not length and data:  # incomplete
                self._incomplete = text.encode() + self._incomplete
                break
            name = _SEQUENCES.get(text[1:length]) if length else "escape"
            keys += [name] if name else []
            text = text[max(1, length) :]
        return [key for key in keys if key.isprintable()]


def _decode(data: bytes) -> tuple[str, bytes]:
    """Decode UTF-8; return the text, and the bytes of an incomplete last character."""
    for cut in range(min(3, len(data)) + 1):
        try:
            return data[: len(data) - cut].decode(), data[len(data) - cut :]
        except UnicodeDecodeError:
            continue
    return data.decode(errors="replace"), b""


def _sequence_length(text: str) -> int:
    """Return the length of the escape sequence with which a text begins; 0 if it is incomplete, 1 for the escape key."""
    if len(text) < 2:
        return 0
    if text[1] == "O":
        return 3 if len(text) > 2 else 0
    if text[1] != "[":
        return 1
    for index in range(2, min(len(text), _MAX_SEQUENCE)):
        if "@" <= text[index] <= "~":
            return index + 1
    return 0 if len(text) < _MAX_SEQUENCE else _MAX_SEQUENCE
