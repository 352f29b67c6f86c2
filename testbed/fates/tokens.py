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
"""Alternative spellings."""


class RuleError(TestbedError, ValueError):
    """Invalid text of a rule or filter. column: column of the error, from 1. syntax: "rule" or "filter"."""

    exit_code = 2

    def __init__(
        self, text: str, column: int, width: int, what: str, suggestion: str = "", syntax: str = "rule"
    ) -> None:
        self.text = text
        self.column = column
        self.what = what
        self.suggestion = suggestion
        hint = f" — did you mean {suggestion!r}?" if suggestion else ""
        marks = "^" * max(width, 1)
        super().__init__(f"{syntax}, column {column}: {what}{hint}\n  {text}\n  {' ' * (column - 1)}{marks}")


@dataclass(frozen=True, slots=True)
class Token:
    """A token; a token of kind "end" follows the last one. column: from 1. syntax: "rule" or "filter"."""

    kind: TokenKind
    text: str
    column: int
    width: int
    syntax: str = "rule"

    def shown(self) -> str:
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
            raise RuleError(text, column, 1, f"{remaining[0]!r} is no part of a {syntax}", syntax=syntax)
        kind: TokenKind = "word" if match["word"] else "sign" if match["sign"] else "quoted"
        begin = match.start(kind) - (kind == "quoted")
        value = match[kind]
        sign = kind == "sign" and value in _SIGNS
        kind_of_sign = "word" if sign and _SIGNS[value].isalpha() else kind
        result.append(
            Token(
                kind_of_sign if sign else kind,
                _SIGNS.get(value, value) if sign else value,
                begin + 1,
                match.end() - begin,
            )
        )
        offset = match.end()
    result.append(Token("end", "", len(text.rstrip()) + 1, 1, syntax))
    return result
