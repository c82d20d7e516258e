"""What IR text is made of below the level of nodes: types, sizes and the values of attributes.

`Reader` walks over the tokens of one text. It makes one symbol per name, so the sizes of a whole text, regions
included, are read by one reader. The parser of graphs builds on it.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from dsl.ir.dims import Dim, DimLike, Symbol, dim_max, dim_min
from dsl.ir.graph import Literal
from dsl.ir.literals import decode
from dsl.ir.tokens import Source, Token
from dsl.ir.types import BY_NAME, HandleType, TensorType, ValueType

__all__ = ["Raw", "Reader"]

T = TypeVar("T")


@dataclass(frozen=True)
class Raw:
    """A constant whose type is still to come: bytes, a number or nested lists."""

    data: Any


class Reader:
    """Reads types and values from the tokens at `at`."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.tokens = source.tokens
        self.at = 0
        self.symbols: dict[str, Dim] = {}

    # -- tokens ------------------------------------------------------------------------------------------------

    @property
    def kind(self) -> str:
        return self.tokens[self.at][0]

    def next(self) -> Token:
        token = self.tokens[self.at]
        self.at += 1
        return token

    def accept(self, kind: str) -> bool:
        """Step over a token of this kind if it is next."""
        if self.tokens[self.at][0] != kind:
            return False
        self.at += 1
        return True

    def expect(self, kind: str, what: str = "") -> Token:
        token = self.tokens[self.at]
        if token[0] != kind:
            self.expected(what or f"'{kind}'")
        self.at += 1
        return token

    def expected(self, what: str) -> NoReturn:
        _, text, _ = self.tokens[self.at]
        self.fail(f"expected {what}, got {repr(text) if text else 'the end of the text'}")

    def fail(self, message: str, token: Token | None = None) -> NoReturn:
        _, _, start = token or self.tokens[self.at]
        raise self.source.error(message, start)

    def is_word(self, word: str) -> bool:
        return self.tokens[self.at][1] == word and self.kind == "name"

    def accept_word(self, word: str) -> bool:
        found = self.is_word(word)
        self.at += found
        return found

    def separated(self, item: Callable[[], T], closing: str) -> list[T]:
        """Read items between commas up to a closing bracket, and the bracket."""
        found: list[T] = []
        while self.kind != closing:
            found.append(item())
            if not self.accept(","):
                break
        self.expect(closing, f"',' or '{closing}'")
        return found

    def several(self, item: Callable[[], T]) -> list[T]:
        """Read one item or more between commas."""
        found = [item()]
        while self.accept(","):
            found.append(item())
        return found

    # -- types -------------------------------------------------------------------------------------------------

    def type(self) -> ValueType:
        if self.kind == "label":
            return HandleType(self.next()[1][1:])
        token = self.expect("name", "a type such as f64[3]")
        if token[1] not in BY_NAME:
            self.fail(f"unknown dtype {token[1]}; expected one of {', '.join(BY_NAME)}", token)
        return self.tensor(token)

    def tensor(self, token: Token) -> TensorType:
        self.expect("[")
        return TensorType(BY_NAME[token[1]], tuple(self.separated(self.dim, "]")))

    def dim(self) -> DimLike:
        token = self.tokens[self.at]
        return self.as_dim(self.expression(), token)

    def as_dim(self, found: Any, token: Token) -> DimLike:
        if isinstance(found, bool) or not isinstance(found, (int, Dim)):
            self.fail("expected a size: a number, a symbol or an expression of them", token)
        return found

    def symbol(self, name: str) -> Dim:
        if name not in self.symbols:
            self.symbols[name] = Symbol(name)
        return self.symbols[name]

    # -- expressions -------------------------------------------------------------------------------------------

    def expression(self) -> Any:
        """A value of an attribute; sums and products are of sizes."""
        token = self.tokens[self.at]
        left = self.product()
        while self.kind in ("+", "-"):
            sign = self.next()[0]
            right = self.as_dim(self.product(), self.tokens[self.at - 1])
            left = self.as_dim(left, token)
            left = left + right if sign == "+" else left - right
        return left

    def product(self) -> Any:
        token = self.tokens[self.at]
        left = self.unary()
        while self.kind in ("*", "//"):
            sign = self.next()[0]
            right = self.as_dim(self.unary(), self.tokens[self.at - 1])
            left = self.as_dim(left, token)
            left = left * right if sign == "*" else self.quotient(left, right)
        return left

    def quotient(self, left: DimLike, right: DimLike) -> DimLike:
        if isinstance(right, int) and right == 0:
            self.fail("division by zero", self.tokens[self.at - 1])
        return left // right

    def unary(self) -> Any:
        if not self.accept("-"):
            return self.primary()
        token = self.tokens[self.at]
        found = self.primary()
        if isinstance(found, bool) or not isinstance(found, (int, float, Dim)):
            self.fail("expected a number after '-'", token)
        return -found

    def primary(self) -> Any:
        read = _PRIMARY.get(self.kind)
        if read is None:
            self.expected("a value of an attribute")
        return read(self)

    def number(self) -> int | float:
        text = self.next()[1]
        return int(text) if text.isdigit() else float(text)

    def complex(self) -> complex:
        return complex(self.next()[1])

    def parenthesis(self) -> Any:
        """A tuple, or one expression in parentheses."""
        self.next()
        start = self.at
        items = self.separated(self.expression, ")")
        is_tuple = len(items) != 1 or self.tokens[self.at - 2][0] == ","
        return tuple(items) if is_tuple and self.at > start else items[0]

    def word(self) -> Any:
        token = self.next()
        name = token[1]
        if name in _WORDS:
            return _WORDS[name]
        if name in BY_NAME:
            return self.typed(token)
        if name in _FUNCTIONS and self.kind == "(":
            return self.call(name)
        if name == "opaque":
            self.fail("an opaque attribute cannot be read back", token)
        return self.symbol(name)

    def call(self, name: str) -> DimLike:
        self.expect("(")
        token = self.tokens[self.at]
        sizes = self.separated(self.dim, ")")
        if len(sizes) != 2 or (name == "mod" and sizes[1] == 0):
            self.fail(f"{name} takes two sizes" + ", the second not 0" * (name == "mod"), token)
        return _FUNCTIONS[name](*sizes)

    def handle(self) -> HandleType:
        return HandleType(self.next()[1][1:])

    # -- constants -------------------------------------------------------------------------------------------

    def raw(self) -> Any:
        if self.accept("["):
            return self.separated(self.raw, "]")
        if self.accept_word("base64"):
            return self.bytes()
        return self.expression()

    def literal(self, raw: Raw, type: TensorType, token: Token) -> Literal:
        try:
            return decode(raw.data, type)
        except ValueError as error:
            self.fail(str(error), token)

    def bytes(self) -> bytes:
        token = self.tokens[self.at]
        try:
            return base64.b64decode(self.string(), validate=True)
        except binascii.Error:
            self.fail("not base64", token)

    def string(self) -> str:
        token = self.expect("string", "a string")
        try:
            return str(json.loads(token[1]))
        except ValueError as error:
            self.fail(f"malformed string: {error}", token)

    def typed(self, token: Token) -> Any:
        """A dtype `f32`, a type `f32[3]` or a literal `f32[3]:[1, 2, 3]`."""
        if self.kind != "[":
            return BY_NAME[token[1]]
        type = self.tensor(token)
        return self.literal(Raw(self.raw()), type, token) if self.accept(":") else type


_WORDS = {"true": True, "false": False, "None": None, "nan": float("nan"), "inf": float("inf")}
_FUNCTIONS: dict[str, Callable[[DimLike, DimLike], DimLike]] = {
    "max": dim_max,
    "min": dim_min,
    "mod": lambda a, b: a % b,
}
_PRIMARY: dict[str, Callable[[Reader], Any]] = {
    "number": Reader.number,
    "complex": Reader.complex,
    "string": Reader.string,
    "(": Reader.parenthesis,
    "name": Reader.word,
    "label": Reader.handle,
}
