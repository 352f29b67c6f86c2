"""What a codec says of bytes that are no frame of its protocol: whoever receives them drops and counts them."""

from __future__ import annotations


class MalformedError(ValueError):
    """reason: "short" (of headers), or the field that is wrong: "type", "version", "length", "check" ..."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"malformed frame: {self.reason}"
