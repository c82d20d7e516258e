"""Loops that count under conditions: branches become choices where many trips can be made at once then."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dsl


def words_by_flag(text):
    n, inside = 0, False
    for i in range(len(text)):
        c = text[i]
        if c == 32 or c == 10 or c == 9:
            inside = False
        elif not inside:
            inside = True
            n += 1
    return n, inside


def words_by_number(text):
    n, inside = 0, 0
    for c in text:
        if c == 32:
            inside = 0
        elif inside == 0:
            inside = 1
            n += 1
    return n, inside


def lines_and_words(text):
    lines, words, inside = 0, 0, False
    for i in range(len(text)):
        space = text[i] == 32 or text[i] == 10
        if text[i] == 10:
            lines += 1
        if not space and not inside:
            words += 1
        inside = not space
    return lines, words


def runs(text):
    n, last = 1, text[0]
    for i in range(1, len(text)):
        if text[i] != last:
            n += 1
            last = text[i]
    return n, last


def narrow(text):
    small, down = np.int8(0), np.uint16(5)
    for i in range(len(text)):
        if text[i] > 90:
            small += np.int8(3)
        else:
            down -= np.uint16(1)
            if text[i] == 10:
                small += np.int8(1)
    return small, down


def first_after_a_space(text):
    before, last, n = np.uint8(0), np.uint8(0), 0
    for i in range(len(text)):
        if last == 32 and before != 32:
            n += 2
        before, last = last, text[i]
    return n, before


def three_states(text):
    n, state = 0, 0
    for i in range(len(text)):
        if text[i] == 32:
            state = 0
        elif state == 0:
            state = 2
        elif state == 2:
            state = 1
            n += 1
    return n, state


def started_otherwise(text):
    n, state = 0, 7
    for i in range(len(text)):
        if text[i] == 32:
            state = 0
        elif state == 0:
            state = 1
            n += 1
    return n, state


def deepest(text):
    depth, most = 0, 0
    for i in range(len(text)):
        if text[i] == 97:
            depth += 1
            if depth > most:
                most = depth
        elif text[i] == 98 and depth > 0:
            depth -= 1
    return depth, most


def asks_for_the_count(text):
    n, m = 0, 0
    for i in range(len(text)):
        if text[i] == 32 and n < 9:
            n += 1
        if n > m:
            m = n
    return n, m


def swaps(text):
    a, b, n = 0, 1, 0
    for i in range(len(text)):
        if text[i] == 32:
            a, b = b, a + 1
            n += 1
    return a, b, n


TOGETHER = [
    words_by_flag, words_by_number, lines_and_words, runs, narrow, first_after_a_space,
]  # fmt: skip
IN_TURN = [three_states, started_otherwise, deepest, asks_for_the_count, swaps]


def text(size: int) -> np.ndarray:
    letters = np.frombuffer(b"abcdef   \n\t", np.uint8)
    return np.random.default_rng(size).choice(letters, size)


@pytest.mark.parametrize("function", [*TOGETHER, *IN_TURN], ids=lambda f: f.__name__)
def test_counts_are_those_of_python(function: Any) -> None:
    compiled = dsl.jit(function)
    with np.errstate(over="ignore"):
        for size in (1, 2, 70, 301, 1000):
            assert compiled(text(size)) == function(text(size)), size


@pytest.mark.parametrize("function", TOGETHER, ids=lambda f: f.__name__)
def test_many_trips_are_made_at_once(function: Any) -> None:
    lowered = dsl.jit(function).lower(text(100))
    assert "as-written" not in lowered.executable.native.flags
    assert "cond(" not in lowered.text("kernels")
