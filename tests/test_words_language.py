"""The language of words: what its functions compute, against the same functions in Python, and what it refuses."""

from __future__ import annotations

import ctypes
import inspect
import textwrap
from collections.abc import Callable
from typing import Any

import pytest

from dsl.codegen.cpu import jit, runtime
from dsl.codegen.words_language import Word, atomic_add, compile_source, copy_words, records
from dsl.errors import InternalError

LIMIT = 5


class Field:
    FIRST, SECOND = range(2)


def native(function: Callable[..., Any]) -> Callable[..., int]:
    """Return a function of words as machine code."""
    runtime.ensure_loaded()
    text = compile_source("test", inspect.getsource(function), globals(), [function.__name__])
    code = jit.load(text, level=2)
    words = [ctypes.c_int64] * len(inspect.signature(function).parameters)
    made = ctypes.PYFUNCTYPE(ctypes.c_int64, *words)(code.address(function.__name__))
    made.code = code  # type: ignore[attr-defined]
    return made


def arithmetic(a: Word, b: Word) -> Word:
    return (a + b * 3 - (a & b)) ^ ((a | b) << 2) + (b // 3) % 7 + (b >> 1) + ~a + -b


def collatz(n: Word) -> Word:
    steps = 0
    while n != 1:
        if n % 2 == 0:
            n = n // 2
        else:
            n = 3 * n + 1
        steps += 1
    return steps


def leaving(n: Word) -> Word:
    found = 0
    for k in range(n):
        if k == 3:
            continue
        if k > LIMIT:
            break
        found += k
    for k in range(10, 20, 4):
        found = found * 100 + k
    return found


def logic(a: Word, b: Word) -> Word:
    if not (a > 0 and b > 0) and (a != b or a == 7):
        return 1
    elif a < b or b <= -3:
        return 2
    return 3


def nothing(a: Word) -> Word:
    """It returns 0."""


@pytest.mark.parametrize("function", [arithmetic, logic])
def test_two_words(function):
    compiled = native(function)
    for a in (-9, -3, 0, 1, 7, 12):
        for b in (1, 2, 7, 1000):
            assert compiled(a, b) == int(function(a, b))


@pytest.mark.parametrize("function", [collatz, leaving])
def test_loops(function):
    compiled = native(function)
    for n in (1, 2, 4, 7, 27):
        assert compiled(n) == function(n)


def test_a_function_without_return_returns_zero():
    assert native(nothing)(5) == 0


def test_memory():
    def swap(pair: Word, target: Word) -> Word:
        first = pair[Field.FIRST]
        pair[Field.FIRST] = pair[Field.SECOND]
        pair[Field.SECOND] = first
        pair[Field.FIRST] += 10
        copy_words(target, pair, 2)
        total = 0
        for record in records(pair, 2, 8):
            total += record[0]
        return total + atomic_add(pair, 5)

    words, target = (ctypes.c_int64 * 2)(3, 4), (ctypes.c_int64 * 2)()
    assert native(swap)(ctypes.addressof(words), ctypes.addressof(target)) == 17 + 14
    assert list(words) == [19, 3]
    assert list(target) == [14, 3]


def test_functions_call_one_another():
    source = """
        def fib(n):
            if n < 2:
                return n
            return fib(n - 1) + other(n)

        def other(n):
            return fib(n - 2)
    """
    text = compile_source("test", textwrap.dedent(source), {}, ["fib"])
    code = jit.load(text, level=2)
    fib = ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(code.address("fib"))
    assert [fib(n) for n in range(10)] == [0, 1, 1, 2, 3, 5, 8, 13, 21, 34]
    with pytest.raises(InternalError, match="defines no 'other'"):
        code.address("other")


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("return a / 2", "line 2, in f: no such operator in this language: a / 2"),
        ("return b", "a variable that nothing sets before: b"),
        ("return g(a)", "no such function with so many parameters"),
        ("return f(a, a)", "no such function with so many parameters"),
        ("return 1 < a < 3", "one comparison of two numbers at a time"),
        ("x, y = a", "only names and words in memory can be assigned"),
        ("import os", "no such statement in this language"),
        ("return 1.5", "no such expression"),
        ("return Field.THIRD", "not a constant of the module"),
        ("for k in a: pass", "a for loop counts over a range"),
        ("break", "outside a loop"),
        ("return a\n    a = 1", "nothing comes to this statement"),
    ],
)
def test_what_is_refused(body, why):
    with pytest.raises(InternalError) as caught:
        compile_source("test", f"def f(a):\n    {body}\n", {"Field": Field}, ["f"])
    assert why in str(caught.value)
