"""The tokens of IR text: what the parser reads, each with its place.

A token is `(kind, text, start)`. The kind of a sign or bracket is its own text; the others are `value` (`%x`),
`label` (`!0`), `name`, `number`, `complex`, `string` and, last, `end`. Space and `#` comments are skipped.
"""

from __future__ import annotations

import re
from bisect import bisect_right

from dsl.errors import ParseError

__all__ = ["Source", "Token"]

Token = tuple[str, str, int]

_NUMBER = r"\d+(?:\.\d*)?(?:[eE][+-]?\d+)?"
_PART = rf"(?:{_NUMBER}|inf|nan)"
_TOKEN = re.compile(
    rf"""(?P<skip>(?:\s|\#[^\n]*)+)
    |(?P<value>%\w+)
    |(?P<label>!\w+)
    |(?P<name>[A-Za-z_]\w*)
    |(?P<complex>\(-?{_PART}[+-]{_PART}j\))
    |(?P<number>{_NUMBER})
    |(?P<string>"[^"\\\n]*(?:\\.[^"\\\n]*)*")
    |(?P<sign>->|>=|//|[()\[\]{{}},:;=*+@.-])
    |(?P<bad>.)""",
    re.VERBOSE | re.ASCII,
)


class Source:
    """IR text with its tokens and the means to complain about one of them."""

    def __init__(self, text: str, name: str) -> None:
        self.text, self.name = text, name
        self._starts = [0] + [match.end() for match in re.finditer("\n", text)]
        self.tokens = self._tokenize()

    def _tokenize(self) -> list[Token]:
        found: list[Token] = []
        for match in _TOKEN.finditer(self.text):
            kind, text = match.lastgroup or "bad", match.group()
            if kind == "sign":
                found.append((text, text, match.start()))
            elif kind == "bad":
                raise self._bad(text, match.start())
            elif kind != "skip":
                found.append((kind, text, match.start()))
        found.append(("end", "", len(self.text)))
        return found

    def _bad(self, character: str, start: int) -> ParseError:
        what = "unterminated string" if character == '"' else f"unexpected character {character!r}"
        return self.error(what, start)

    def line(self, start: int) -> int:
        """Return the line, from 1, of a position."""
        return bisect_right(self._starts, start)

    def error(self, message: str, start: int) -> ParseError:
        """Return the error that shows the line of a position with a caret under it."""
        line = self.line(start)
        begin = self._starts[line - 1]
        text = self.text[begin:].split("\n", 1)[0]
        return ParseError(message, line=line, column=start - begin + 1, text=text)
