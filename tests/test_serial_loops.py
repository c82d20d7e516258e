"""Explicit loops whose trips wait for one another: results are those of plain Python, and the code has what makes them fast."""

from __future__ import annotations

import math
import platform
from typing import Any

import numpy as np
import pytest

import dsl

# -- numbers that are cut off to some bits in each trip ----------------------------------------------------------------


def congruential(n, seed):
    total = 0
    for _ in range(n):
        seed = (seed * 1103515245 + 12345) & 0x7FFFFFFF
        total ^= seed
    return total, seed


def hash_of(data):
    h = 5381
    for i in range(len(data)):
        h = (h * 33 + int(data[i])) & 0xFFFFFFFF
    return h


@pytest.mark.parametrize("n", [0, 1, 7, 8, 9, 100, 65_535, 65_536, 65_537, 70_003])
def test_recurrences_modulo_powers_of_two(n: int) -> None:
    for seed in (0, 12345, -5, 2**40 + 3):
        assert dsl.jit(congruential)(n, seed) == congruential(n, seed)
    data = np.random.default_rng(n).integers(0, 256, n).astype(np.uint8)
    assert dsl.jit(hash_of)(data) == hash_of(data)


def test_several_trips_share_a_turn_of_the_loop() -> None:
    assert dsl.jit(congruential).ir(100, 3, stage="asm").count("imul") > 4


# -- elements that have just been written ------------------------------------------------------------------------------


def filtered(b, a, x):
    y = np.zeros_like(x)
    for n in range(len(x)):
        s = 0.0
        for k in range(len(b)):
            if n - k >= 0:
                s += b[k] * x[n - k]
        for k in range(1, len(a)):
            if n - k >= 0:
                s -= a[k] * y[n - k]
        y[n] = s / a[0]
    return y


def test_elements_written_by_the_trip_before_are_read_one_by_one() -> None:
    rng = np.random.default_rng(1)
    b, a, x = rng.random(4), np.array([1.0, -0.5, 0.2, 0.1]), rng.random(500)
    f = dsl.jit(filtered)
    np.testing.assert_allclose(f(b, a, x), filtered(b, a, x), rtol=1e-12)
    assert "vmulpd" not in f.ir(b, a, x, stage="asm")


# -- arrays that loops fill --------------------------------------------------------------------------------------------


def elements(x):
    out = np.empty_like(x)
    for i in range(len(x)):
        out[i] = 2 * x[i]
    return out


def table(x):
    n, m = len(x), len(x) + 1
    out = np.zeros((n, m))
    for i in range(n):
        for j in range(m):
            out[i, j] = x[i] * j
    return out


def turned(x):
    out = np.zeros((len(x), len(x)))
    for i in range(len(x)):
        for j in range(len(x)):
            out[j, i] = x[i] * j
    return out


def rows(x):
    out = np.empty((len(x), 3))
    for i in range(len(x)):
        out[i] = x[i], 2 * x[i], 1.0
    return out


def sized(n, m):
    out = np.zeros((n, m))
    for i in range(n):
        for j in range(m):
            out[i, j] = i - j
    return out


X = np.random.default_rng(3).random(40)
LARGE = np.random.default_rng(3).random(300)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize(
    ("program", "args"),
    [
        (elements, (X,)),
        (elements, (LARGE,)),
        (table, (X,)),
        (turned, (X,)),
        (rows, (X,)),
        (sized, (5, 7)),
    ],
)
def test_arrays_that_a_loop_overwrites_are_not_filled_before(
    program: Any, args: Any, dynamic: Any
) -> None:
    f = dsl.jit(program, dynamic=dynamic)
    assert "] = 0" not in f.ir(*args, stage="kernels")
    for _ in range(2):  # the second time in memory that was used before
        np.testing.assert_array_equal(f(*args), program(*args))


def short(x):
    out = np.zeros_like(x)
    for i in range(len(x) - 1):
        out[i] = x[i]
    return out


def conditional(x):
    out = np.zeros_like(x)
    for i in range(len(x)):
        if x[i] > 0.5:
            out[i] = x[i]
    return out


def read_before(x):
    out = np.zeros_like(x)
    for i in range(len(x)):
        out[i] = x[i] + out[len(x) - 1 - i]
    return out


def read_after(x):
    out = np.zeros_like(x)
    total = 0.0
    for i in range(len(x)):
        out[i] = x[i]
        total += out[len(x) // 2]
    return out, total


def accumulated(x):
    out = np.zeros_like(x)
    for i in range(len(x)):
        out[i] += x[i]
    return out


def on_a_diagonal(x):
    out = np.zeros((len(x), len(x)))
    for i in range(len(x)):
        out[i, i] = x[i]
    return out


def one_row(x):
    out = np.zeros((len(x), len(x)))
    for j in range(len(x)):
        out[0, j] = x[j]
    return out


def repeated(x):
    out = np.zeros_like(x)
    for k in range(int(x[0] * 0)):
        for i in range(len(x)):
            out[i] = x[i] + k
    return out


def shared(x):
    out = np.zeros_like(x)
    other = np.zeros_like(x)
    for i in range(len(x)):
        out[i] = x[i] + other[i]
    return out, other


def left_early(x):
    out = np.zeros_like(x)
    for i in range(len(x)):
        if x[i] > 0.9:
            break
        out[i] = x[i]
    return out


def backwards(x):
    out = np.zeros_like(x)
    for i in range(len(x) - 1, 0, -1):
        out[i] = x[i]
    return out


NOT_ALL = [
    short, conditional, read_before, read_after, accumulated, on_a_diagonal, one_row, repeated, shared, left_early, backwards,
]  # fmt: skip


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("program", NOT_ALL)
def test_what_a_loop_leaves_as_it_is_keeps_its_zeros(program: Any, dynamic: Any) -> None:
    f = dsl.jit(program, dynamic=dynamic)
    dsl.jit(elements)(X)  # leaves memory with other numbers in it
    for _ in range(2):
        got, want = f(X), program(X)
        for a, b in zip(
            got if isinstance(got, tuple) else (got,), want if isinstance(want, tuple) else (want,)
        ):
            np.testing.assert_array_equal(a, b)


# -- looks for the keyboard --------------------------------------------------------------------------------------------


def marked(x):
    stack = np.zeros(len(x), dtype=np.int64)
    total = 0
    for i in range(len(x)):
        for j in range(len(x)):
            stack[0] = i * j
            total += stack[x[j]]
    return total


def test_a_loop_that_writes_one_element_of_a_large_array_looks_for_interrupts_seldom() -> None:
    x = np.arange(300) % 7
    compiled = dsl.jit(marked)
    assert compiled(x) == marked(x)
    for line, before in _pairs(compiled.ir(x, stage="llvm")):
        if "call i32 @dsl_poll" in line:
            assert before.startswith("then")  # where many trips were made


def around_points(x):
    total = 0
    for i in range(1, len(x) - 1):
        key = x[i]
        for p in range(2):
            for q in range(-1, 2):
                if x[i + q] == key + p:
                    total += p + q
    return total


def test_loops_of_few_trips_do_not_look_for_interrupts_in_their_own() -> None:
    x = np.random.default_rng(0).integers(0, 3, 100)
    compiled = dsl.jit(around_points, dynamic=True)
    assert compiled(x) == around_points(x)
    assert compiled.ir(x, stage="llvm").count("call i32 @dsl_poll") == 1  # of the loop around them


# -- floats that become indices ----------------------------------------------------------------------------------------


def histogram(x, y, h):
    for i in range(len(x)):
        a, b = int(x[i]), int(y[i])
        if a >= 0 and a < 4 and b >= 0 and b < 4:
            h[a, b] += 1
    return h


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="an instruction of x86")
def test_an_index_that_a_branch_looks_at_is_cut_off_by_one_instruction() -> None:
    x = np.array([0.5, 3.9, -0.5, -1.0, 4.0, 1e10, -1e10, 3.0])
    h = np.zeros((4, 4), np.int64)
    compiled = dsl.jit(histogram)
    np.testing.assert_array_equal(
        compiled(x, x[::-1].copy(), h.copy()), histogram(x, x[::-1], h.copy())
    )
    assert compiled.ir(x, x[::-1].copy(), h, stage="llvm").count("sse2.cvttsd2si64(<2") == 3


def _pairs(text):
    lines = [line.strip() for line in text.splitlines()]
    return zip(lines[1:], lines)


# -- elements of a new array whose size the caller tells ----------------------------------------------------------------


def marks(n):
    p = np.ones(n + 1, dtype=np.bool_)
    p[0] = False
    p[1] = False
    i = 2
    while i * i <= n:
        if p[i]:
            for j in range(i * i, n + 1, i):
                p[j] = False
        i += 1
    return p


def test_elements_at_known_places_are_written_where_the_array_is() -> None:
    compiled = dsl.jit(marks)
    np.testing.assert_array_equal(compiled(10), marks(10))
    assert "1 arrays of workspace" in str(compiled.lower(10).memory_report())
    with pytest.raises(IndexError, match="index 1 is out of bounds for axis 0 with size 1"):
        compiled(0)


# -- bounds that all trips keep to -------------------------------------------------------------------------------------


def place_of_least(x):
    place = 0
    for i in range(len(x)):
        if x[i] < x[place]:
            place = i
    return place


def popped(x):
    stack = np.zeros(3 * len(x) + 3, dtype=np.int64)
    top, total = 1, 0
    while top > 0:
        top -= 1
        total += stack[top]
        if x[stack[top]] > 0 and total < 300:
            stack[top] = 2
            top += 1
            if total % 2 == 0:
                top += 1
    return total


def runs(x):
    count, i = 0, 0
    while i < len(x):
        first = x[i]
        while i < len(x) and x[i] == first:
            i += 1
        count += 1
    return count


@pytest.mark.parametrize(("program", "checks"), [(place_of_least, 0), (runs, 0), (popped, 3)])
def test_bounds_that_follow_by_induction_are_not_checked(program: Any, checks: int) -> None:
    x = np.arange(20) % 7
    compiled = dsl.jit(program)
    assert compiled(x) == program(x)
    assert (
        compiled.ir(x, stage="llvm").count("icmp uge") == checks
    )  # by data: twice; at the top: once


def doubled(n):
    k, total = 1, 0
    for _ in range(n):
        k = max(k * 2, 1)
        total += k % 7
    return total


def fibonacci(n):
    a, b, total = 0, 1, 0
    for _ in range(n):
        a, b = b, a + b
        total += a % 7
    return total


def halved_and_more(n):
    k, total = 1, 0
    for _ in range(n):
        k = k * 3 // 2 + 1
        total += k % 7
    return total


@pytest.mark.parametrize("program", [doubled, fibonacci, halved_and_more])
def test_numbers_that_wrap_round_have_no_bounds(program: Any) -> None:
    with dsl.config.override(backend="interpreter"):
        want = dsl.jit(program)(200)
    assert dsl.jit(program)(200) == want


def below(x):
    k = 0
    for i in range(len(x)):
        k = k - 1 if x[i] > 0 else k
    return x[k]


def beyond(x):
    k = 0
    for i in range(len(x)):
        if x[i] > 0:
            k = i + 1
    return x[k]


def test_numbers_that_leave_the_array_are_still_found() -> None:
    x = np.ones(5)
    assert dsl.jit(below)(x) == 1.0
    for program in (below, beyond):
        with pytest.raises(IndexError):
            dsl.jit(program)(x[:0] if program is below else x)


# -- the best so far ---------------------------------------------------------------------------------------------------


def place_of_largest(x):
    best, place = x[0], 0
    for i in range(1, len(x)):
        if x[i] > best:
            best, place = x[i], i
    return place


def pivot(x):
    place = 0
    for i in range(len(x)):
        if i != 3 and abs(x[i]) >= abs(x[place]):
            place = i
    return place


def largest(x):
    best = x[0]
    for i in range(len(x)):
        if x[i] > best:
            best = x[i]
    return best


def filled(x):
    place = 0
    for i in range(len(x)):
        if x[i] < x[place]:
            place = place + 1
    return place


SIGNED = np.random.default_rng(5).integers(-50, 50, 300)


@pytest.mark.parametrize(
    ("program", "rare"),
    [(place_of_largest, True), (place_of_least, True), (pivot, True), (largest, False), (filled, False)],
)  # fmt: skip
def test_what_becomes_the_best_so_far_is_a_branch_and_not_a_choice(
    program: Any, rare: bool
) -> None:
    for x in (SIGNED, SIGNED.astype(np.int32), SIGNED / 8):
        compiled = dsl.jit(program)
        assert compiled(x) == program(x)
        assert ('asm sideeffect ""' in compiled.ir(x, stage="llvm")) == rare


@pytest.mark.parametrize(
    ("program", "at_once"), [(place_of_largest, True), (place_of_least, True), (pivot, True), (filled, False)]
)  # fmt: skip
def test_a_search_for_the_best_makes_several_trips_between_two_looks_at_its_end(
    program: Any, at_once: bool
) -> None:
    compiled = dsl.jit(program, dynamic=True)
    for size in (*range(1, 15), 299, 300):
        x = SIGNED[:size]
        assert compiled(x) == program(x)
    assert ("llvm.loop.unroll.count" in compiled.ir(SIGNED, stage="llvm")) == at_once


def logarithms(x):
    out = np.zeros(len(x))
    for i in range(len(x)):
        out[i] = math.log(x[i])
    return out


def exponentials(x):
    out = np.zeros(len(x))
    for i in range(len(x)):
        out[i] = math.exp(x[i])
    return out


def entropies(x):
    out = np.zeros(len(x))
    for i in range(len(x)):
        for k in range(5):
            out[i] += math.log(x[i] + k)
    return out


@pytest.mark.parametrize(("program", "single"), [(logarithms, True), (exponentials, False), (entropies, True)])  # fmt: skip
def test_functions_in_trips_that_may_raise_are_those_of_single_numbers(
    program: Any, single: bool
) -> None:
    x = np.random.default_rng(0).random(300)
    compiled = dsl.jit(program)
    np.testing.assert_allclose(compiled(x), program(x), rtol=1e-14)
    assert ("nobuiltin" in compiled.ir(x, stage="llvm")) == single


# --- Loops over bits ------------------------------------------------------------------------------------------------


def bits_of_each(x):
    out = np.zeros(len(x), np.int64)
    for i in range(len(x)):
        v, count = x[i], 0
        while v:
            v &= v - 1
            count += 1
        out[i] = count
    return out


def bits_of_all(x):
    total = 0
    for i in range(len(x)):
        v = x[i]
        while v != 0:
            v = v & (v - 1)
            total += 1
    return total


def digits_of_all(x):
    total = 0
    for i in range(len(x)):
        v = x[i]
        while v > 0:
            total += v % 10
            v //= 10
    return total


def highest_bits(x):
    out = np.zeros(len(x), np.int64)
    for i in range(len(x)):
        v = x[i]
        while v > 1:
            v >>= 1
            out[i] += 1
    return out


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint8, np.uint64])
@pytest.mark.parametrize("function", [bits_of_each, bits_of_all, digits_of_all, highest_bits])
def test_loops_over_bits(function: Any, dtype: Any) -> None:
    rng, limits = np.random.default_rng(3), np.iinfo(dtype)
    x = rng.integers(limits.min, limits.max, 300, dtype, endpoint=True)
    x[:3] = 0, limits.max, limits.min
    compiled = dsl.jit(function)
    for part in (x, x[:7], x[:0]):
        np.testing.assert_array_equal(compiled(part), function(part))


@pytest.mark.skipif(platform.machine() != "x86_64", reason="names an instruction of x86")
@pytest.mark.parametrize("function", [bits_of_each, bits_of_all])
def test_bits_are_counted_by_an_instruction(function: Any) -> None:
    assert "popcnt" in dsl.jit(function).ir(np.arange(1000), stage="asm")


# -- branches that take the same side in all trips ---------------------------------------------------------------------


def least_path(costs):
    n, m = costs.shape
    d = np.zeros((n, m))
    for i in range(n):
        for j in range(m):
            if i == 0 and j == 0:
                d[i, j] = costs[i, j]
            elif i == 0:
                d[i, j] = d[i, j - 1] + costs[i, j]
            elif j == 0:
                d[i, j] = d[i - 1, j] + costs[i, j]
            else:
                d[i, j] = min(d[i - 1, j], d[i, j - 1]) + costs[i, j]
    return d


def by_mode(x, mode):
    y = x.copy()
    for i in range(3):
        for j in range(1, len(x)):
            if y[j] > 0.5:
                y[j] -= y[j - 1] if mode > i else 0.25 * j
    return y


def test_what_stays_is_asked_once() -> None:
    costs = np.random.default_rng(2).random((30, 40))
    for program, args in ((least_path, (costs,)), (by_mode, (costs[0], 2))):
        f = dsl.jit(program)
        np.testing.assert_array_equal(f(*args), program(*args))
        assert "split" in f.lower(*args).executable.native.flags
    assert "split" not in dsl.jit(table).lower(X).executable.native.flags
