"""The error that codecs raise for bytes that are not a frame of their protocol; receivers drop and count such
frames."""

from __future__ import annotations


class MalformedError(ValueError):
    """A frame is malformed. reason: "short" for an incomplete header, or the invalid field: "type", "version",
    "length", "check" ..."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"malformed frame: {self.reason}"
