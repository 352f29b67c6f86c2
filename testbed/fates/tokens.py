"""Tokens of a rule's or filter's text, and the error for an invalid token."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

from testbed.errors import TestbedError

TokenKind = Literal["word", "quoted", "sign", "end"]

_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<word>[A-Za-z0-9_.:/%+-]+)|"(?P<quoted>[^"]*)"|(?P<sign>==|!=|<=|>=|&&|\|\||[<>!&(),{}=]))"""
)
_SIGNS: Final = {"&&": "and", "||": "or", "!": "not", "{": "(", "}": ")"}
"""Alternative spellings of words and signs."""


class RuleError(TestbedError, ValueError):
    """Invalid text of a rule or filter. column, width: first column, from 1, and number of columns of the invalid part.
    message: the error without its place and the suggestion. syntax: "rule" or "filter"."""

    exit_code = 2

    def __init__(
        self, text: str, column: int, width: int, message: str, suggestion: str = "", syntax: str = "rule"
    ) -> None:
        self.text = text
        self.column = column
        self.message = message
        self.suggestion = suggestion
        hint = f" — did you mean {suggestion!r}?" if suggestion else ""
        marks = "^" * max(width, 1)
        super().__init__(f"{syntax}, column {column}: {message}{hint}\n  {text}\n  {' ' * (column - 1)}{marks}")


@dataclass(frozen=True, slots=True)
class Token:
    """A token; a token of kind "end" follows the last one. column: from 1. syntax: "rule" or "filter"."""

    kind: TokenKind
    text: str
    column: int
    width: int
    syntax: str = "rule"

    def format(self) -> str:
        """Format the token for an error message."""
        return f"the {self.syntax}'s end" if self.kind == "end" else repr(self.text)


def tokens(text: str, syntax: str = "rule") -> list[Token]:
    """Split a text into tokens. Raises RuleError for an invalid character. syntax: "rule" or "filter"."""
    result: list[Token] = []
    offset = 0
    while offset < len(text):
        match = _TOKEN.match(text, offset)
        if match is None:
            remaining = text[offset:].lstrip()
            if not remaining:
                break
            column = len(text) - len(remaining) + 1
            if remaining[0] == '"':
                raise RuleError(text, column, len(remaining), "a quotation mark that is not closed", syntax=syntax)
            raise RuleError(text, column, 1, f"{remaining[0]!r} is not allowed in a {syntax}", syntax=syntax)
        kind: TokenKind = "word" if match["word"] else "sign" if match["sign"] else "quoted"
        begin = match.start(kind) - (kind == "quoted")
        value = match[kind]
        if kind == "sign" and value in _SIGNS:
            value = _SIGNS[value]
            kind = "word" if value.isalpha() else "sign"
        result.append(Token(kind, value, begin + 1, match.end() - begin))
        offset = match.end()
    result.append(Token("end", "", len(text.rstrip()) + 1, 1, syntax))
    return result
