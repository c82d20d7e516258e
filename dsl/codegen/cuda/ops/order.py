"""NumPy's order of elements, for sorts and searches: NaNs last, complex numbers by real part, then imaginary part.

An element is some words, integers that kernels move about. Real ones are one word, a key that compares as they do
(`dsl.codegen.library.keys`). Complex ones are the bits of both parts: those with a NaN come after all others, first with
one in the imaginary part, then in the real part, then in both.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dsl.codegen.arrays import Scalar, load_scalar, memory_type, register_type
from dsl.codegen.library.keys import from_order, key_type, sort_key, to_order
from dsl.codegen.llvm import Function, Value
from dsl.ir.types import is_float

__all__ = ["Order", "Words", "word_dtypes"]

Words = Sequence[Value]


def word_dtypes(dtype: np.dtype) -> list[np.dtype]:
    """Return the dtypes of the words of an element."""
    if dtype.kind == "c":
        return [np.dtype(f"i{dtype.itemsize // 2}")] * 2
    return [np.dtype(f"i{dtype.itemsize}")]


class Order:
    """How elements of a dtype are compared; `exact` keys tell -0.0 from 0.0, and can be turned into the element again."""

    def __init__(self, fn: Function, dtype: np.dtype, *, exact: bool = False) -> None:
        self.fn, self.dtype, self.exact = fn, dtype, exact
        self.is_complex = dtype.kind == "c"
        self.part = np.dtype(f"f{dtype.itemsize // 2}") if self.is_complex else dtype
        self.dtypes = word_dtypes(dtype)
        self.last = int(np.iinfo(self.dtypes[0]).max)

    def load(self, address: Value) -> Words:
        """Load an element as words."""
        fn, dtype = self.fn, self.dtype
        if not self.is_complex:
            return self.words_of(fn.load(memory_type(dtype), address, align=dtype.itemsize))
        return self.words_of(load_scalar(fn, dtype, address))

    def words_of(self, element: Scalar) -> Words:
        """Return the words of an element as it is in memory."""
        fn, kind = self.fn, key_type(self.part)
        if isinstance(element, tuple):
            return [fn.convert("bitcast", part, kind) for part in element]
        if element.type == "i1":
            element = fn.convert("zext", element, "i8")
        if self.exact and is_float(self.dtype):
            return [to_order(fn, self.dtype, fn.convert("bitcast", element, kind))]
        return [sort_key(fn, self.dtype, element)]

    def element(self, words: Words) -> Scalar:
        """Return the element that has exact words."""
        fn, type = self.fn, register_type(self.part)
        if self.is_complex:
            real, imag = (fn.convert("bitcast", word, type) for word in words)
            return real, imag
        (key,) = words
        if is_float(self.dtype):
            return fn.convert("bitcast", from_order(fn, self.dtype, key), type)
        if self.dtype.kind == "u":
            return fn.binary("xor", key, -self.last - 1)
        return fn.convert("trunc", key, "i1") if self.dtype.kind == "b" else key

    def greatest(self) -> Words:
        """Return words that nothing comes after."""
        return [Value(str(self.last), key_type(self.part))] * len(self.dtypes)

    def less(self, a: Words, b: Words) -> Value:
        """Return whether an element comes before another."""
        if not self.is_complex:
            return self.fn.compare("slt", a[0], b[0])
        before, _ = self._compared(a, b)
        return before

    def has_nan(self, words: Words) -> Value:
        """Return whether a part of a complex number is NaN."""
        return self.fn.compare("ne", self._ranks(words)[0], 0)

    def less_or_same(self, a: Words, i: Value, b: Words, j: Value) -> Value:
        """Return whether an element comes before another, or is equal to it and has a smaller index."""
        fn = self.fn
        if self.is_complex:
            before, same = self._compared(a, b)
        else:
            before, same = fn.compare("slt", a[0], b[0]), fn.compare("eq", a[0], b[0])
        return fn.either(before, fn.both(same, fn.compare("slt", i, j)))

    def _compared(self, a: Words, b: Words) -> tuple[Value, Value]:
        """Return whether a complex number comes before another, and whether they are equal."""
        fn = self.fn
        before, same = Value("false", "i1"), Value("true", "i1")
        for x, y in zip(self._ranks(a), self._ranks(b), strict=True):
            before = fn.either(before, fn.both(same, fn.compare("slt", x, y)))
            same = fn.both(same, fn.compare("eq", x, y))
        return before, same

    def _ranks(self, words: Words) -> Words:
        """Return what complex numbers are compared by: where there are NaNs, the real part, the imaginary part."""
        fn = self.fn
        real, imag = (sort_key(fn, self.part, word) for word in words)
        nans = [fn.convert("zext", fn.compare("eq", k, self.last), "i32") for k in (real, imag)]
        return fn.binary("or", fn.binary("shl", nans[0], 1), nans[1]), real, imag
