"""Numbers outside of a function that change from call to call: they become inputs, so that nothing compiles again and again."""

from __future__ import annotations

import functools
import threading
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import dsl

X = np.array([1.0, 2.0, -3.0])
RATE, COUNT, SIZE = 0.5, 1, 2


class Ball:
    """A little simulation, whose state is numbers and an array."""

    rate = 0.9

    def __init__(self) -> None:
        self.time, self.steps, self.drag = 0.0, 0, np.float32(0.25)
        self.place = np.zeros(3)

    def advance(self, push, dt):
        self.place += dt * push * np.cos(self.time) - self.drag
        self.time += dt
        self.steps += 1
        if self.steps % 3 == 0:
            self.place *= self.rate
        return self.place.sum(), self.steps


def state(ball: Ball) -> list[Any]:
    return [ball.time, ball.steps, ball.drag, ball.place.tolist()]


@pytest.mark.parametrize("backend", ["native", "interpreter"])
def test_counters_and_clocks_of_an_object(backend: str) -> None:
    mine, plain = Ball(), Ball()
    advance = dsl.jit(Ball.advance)
    with dsl.config.override(backend=backend):
        for _ in range(9):
            got, expected = advance(mine, X, 0.5), plain.advance(X, 0.5)
            np.testing.assert_allclose(got, expected)
            assert [type(part) for part in got] == [type(part) for part in expected]
            np.testing.assert_allclose(state(mine)[3], state(plain)[3])
            assert state(mine)[:3] == state(plain)[:3]
            assert list(map(type, state(mine))) == list(map(type, state(plain)))
    assert advance.cache_info().misses == 2


def scaled(x):
    return x * RATE + COUNT


def test_variables_of_a_module(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = dsl.jit(scaled)
    for k in range(6):
        monkeypatch.setitem(globals(), "RATE", 0.5 + k)
        monkeypatch.setitem(globals(), "COUNT", 3 * k)
        np.testing.assert_array_equal(compiled(X), scaled(X))
    assert compiled.cache_info()[:2] == (4, 2)
    assert "from now on calls read `COUNT`, `RATE`" in compiled.explain().replace(
        "`RATE`, `COUNT`", "`COUNT`, `RATE`"
    )


def sized(x):
    return np.full(SIZE, RATE) * x[0]


def test_numbers_whose_values_tracing_needs_stay_as_they_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def taken(x):
        return x.sum(axis=SIZE - 3), "ab"[SIZE - 3], {3: 1, 4: 2}[SIZE]

    compiled = dsl.jit(taken)
    for size in (3, 4, 3, 4, 3):
        monkeypatch.setitem(globals(), "SIZE", size)
        got, expected = compiled(np.ones((2, 5))), taken(np.ones((2, 5)))
        np.testing.assert_array_equal(got[0], expected[0])
        assert got[1:] == expected[1:]
    assert compiled.cache_info().entries == 2


def test_sizes_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = dsl.jit(sized)
    for size in (2, 5, 1, 0, 7, 7):
        monkeypatch.setitem(globals(), "SIZE", size)
        np.testing.assert_array_equal(compiled(X), sized(X))


def test_kinds_of_numbers_that_change_too() -> None:
    kept: Any = 1.0

    def plus(x):
        return x + kept

    compiled = dsl.jit(plus)
    for value in (
        2.0,
        3.0,
        4,
        5,
        True,
        False,
        2 + 1j,
        np.float32(3),
        np.float32(0.1),
        10**30,
        np.int8(7),
        -0.0,
        np.nan,
    ):
        kept = value
        got, expected = compiled(np.float32([1, 2])), plus(np.float32([1, 2]))
        assert got.dtype == expected.dtype
        np.testing.assert_array_equal(got, expected)


def in_containers() -> Iterator[tuple[str, Any, Any, int]]:
    """Yield functions that read numbers in lists and dicts, what changes these, and how often that compiles."""
    pair, table, deep, grows = (
        [1.0, 2.0],
        {"a": 1.0, "b": 2.0},
        {"o": {"r": 0.1, "b": [1.0, 2.0]}},
        [1.0],
    )
    held = types.SimpleNamespace(c=[1.0, 2.0], w={"w": np.ones(3), "r": 1.0})
    given = functools.partial(lambda c, x: x * c[0] + sum(c), pair)

    def set_first(k):
        pair[0] = 0.5 * k

    def set_rate(k):
        table["a"] = 0.5 * k

    def set_deep(k):
        deep["o"].update(r=0.3 * k)
        deep["o"]["b"][1] = k

    def set_held(k):
        held.c = [1.0 * k, 2.0 * k]
        held.w.update(w=np.full(3, 1.0 * k), r=3.0 * k)

    def default(x, c=pair):
        return x * c[0] + sum(c)

    def matched(x):
        match table:
            case {"a": 1.0}:
                return x * 3
            case {"a": a}:
                return x * a

    def copied(x):
        more, other = list(pair), {**table}
        more[0] += 1
        other["a"] *= 2
        return x * sum(more) + sum(other.values())

    def unpacked(x):
        a, _ = pair
        return x * a + (lambda x, a, b: x * a - b)(x, **table)

    yield "list", lambda x: x * pair[0] + sum(pair), set_first, 2
    yield "dict", lambda x: x * table["a"] + max(table.values()), set_rate, 2
    yield "nested", lambda x: x * deep["o"]["r"] + deep["o"]["b"][1], set_deep, 3
    yield (
        "attribute",
        lambda x: x * held.c[0] + sum(held.c) + held.w["w"] * held.w["r"],
        set_held,
        3,
    )
    yield "unpacked", unpacked, set_first, 2
    yield "array", lambda x: x * np.array(pair).sum() + np.polyval(pair, x), set_first, 2
    yield "items", lambda x: sum(x * v * len(k) for k, v in table.items()), set_rate, 2
    yield "get", lambda x: x * table.get("a") + table.get("z", 3.0), set_rate, 2
    yield "copied", copied, set_first, 2
    yield "partial", lambda x: given(x) + pair[0], set_first, 2
    yield "in the program", lambda x: np.where(x > pair[0], x, pair[1]), set_first, 2
    yield "match", matched, set_rate, 3
    yield "written", lambda x: x * len(f"{table}"), set_rate, 6
    yield "hashed", lambda x: x * (hash(tuple(pair)) % 7), set_first, 6
    yield "default", lambda x: default(x) + pair[0], set_first, 6
    yield "longer", lambda x: x * sum(grows), lambda k: grows.append(1.0 * k), 6
    yield (
        "other order",
        lambda x: x * next(iter(table)).count("a"),
        lambda k: table.update(a=table.pop("a")),
        2,
    )


@pytest.mark.parametrize("name", [name for name, *_ in in_containers()])
def test_numbers_in_lists_and_dicts(name: str) -> None:
    plain, change, most = {name: rest for name, *rest in in_containers()}[name]
    compiled = dsl.jit(lambda x: plain(x))
    for k in range(6):
        if k:
            change(k)
        for _ in range(2):
            np.testing.assert_allclose(compiled(X), plain(X))
    assert compiled.cache_info().misses <= most


def test_a_list_in_another_that_is_read_as_a_whole() -> None:
    inner = [1.0, 2.0]
    outer = [inner, inner, [3.0]]
    compiled = dsl.jit(lambda x: x * inner[0] + np.array(outer[:2]).sum() + (inner is outer[1]))
    for k in range(4):
        inner[0] = 1.0 * k
        np.testing.assert_allclose(compiled(X), X * k + 2 * k + 5.0)


def test_counters_in_a_dict_of_an_object() -> None:
    class Counter:
        def __init__(self) -> None:
            self.stats = {"n": 0, "total": 0.0}

        @dsl.jit
        def add(self, x):
            self.stats["n"] += 1
            self.stats["total"] += x.sum()
            return x * self.stats["n"]

    counter = Counter()
    stats = counter.stats
    for k in range(6):
        np.testing.assert_array_equal(counter.add(X + k), (X + k) * (k + 1))
        assert stats["n"] == k + 1
    assert stats["total"] == sum((X + k).sum() for k in range(6))
    assert Counter.add.cache_info().misses <= 3


def test_derivatives_and_batches_read_them_as_they_are() -> None:
    kept = 1.0

    def energy(x):
        return (x**2 * kept).sum()

    slope, each = dsl.grad(energy), dsl.jit(dsl.vmap(lambda row: row * kept))
    for value in (1.0, 2.0, 3.0, 5.0):
        kept = value
        np.testing.assert_allclose(slope(X), 2 * X * value)
        np.testing.assert_allclose(each(np.stack([X, X])), np.stack([X, X]) * value)


def test_in_branches_and_loops() -> None:
    ball = Ball()

    @dsl.jit
    def program(x, n):
        for i in range(n):
            if x[i % 3] > ball.time:
                x = x * ball.time + ball.steps
        return x

    def plain(x, n):
        for i in range(n):
            if x[i % 3] > ball.time:
                x = x * ball.time + ball.steps
        return x

    for k in range(5):
        ball.time, ball.steps = 0.5 * k - 1, k
        np.testing.assert_allclose(program(X, 7), plain(X, 7))
    assert program.cache_info().misses == 2


def test_a_call_that_raises_leaves_them_as_they_were() -> None:
    ball = Ball()

    @dsl.jit
    def step(x, i):
        ball.steps += 1
        return x[i] * ball.steps

    for k in range(4):
        assert step(X, 1) == 2.0 * (k + 1)
    with pytest.raises(IndexError):
        step(X, 7)
    assert ball.steps == 4
    assert step(X, 0) == 5.0


def test_on_the_emulator_and_with_nans_looked_for() -> None:
    kept = 1.0

    def times(x):
        return x * kept

    on_gpu = dsl.jit(device="cuda-emulator:0")(times)
    on_host = dsl.jit(times)
    for value in (1.0, 2.0, 4.0):
        kept = value
        np.testing.assert_array_equal(np.asarray(on_gpu(X)), X * value)
        with dsl.config.override(debug_nans=True):
            np.testing.assert_array_equal(on_host(X), X * value)


def test_many_threads_read_them() -> None:
    balls = [Ball() for _ in range(4)]
    turn = dsl.jit(lambda ball, x: x * ball.steps)
    wrong: list[Any] = []

    def work(ball: Ball) -> None:
        for k in range(200):
            ball.steps = k
            if not np.array_equal(turn(ball, X), X * k):
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(ball,)) for ball in balls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert turn.cache_info().entries <= 8


class Kept:
    def __init__(self) -> None:
        self.n, self.a, self.name = 1, np.zeros(2), None


def in_a_branch(o, x):
    if x[0] > 0:
        o.n = 5
    return x + 1


def an_array(o, x):
    if x[0] > 0:
        o.a = np.ones(2)
    return x + 1


def in_a_loop(o, x):
    for k in range(3):
        if x[k] > 0:
            o.n = k
    return x * 2


def added(o, x):
    for k in range(3):
        o.n += k
    return o.n * x


@pytest.mark.parametrize("plain", [in_a_branch, an_array, in_a_loop, added])
def test_paths_that_do_not_assign_leave_what_is_outside(plain: Any) -> None:
    """What an attribute was when the function was traced is not written back."""
    mine, other, compiled = Kept(), Kept(), dsl.jit(plain)
    for k in range(8):
        x = np.full(3, -1.0 if k % 4 else 1.0)
        np.testing.assert_array_equal(compiled(mine, x), plain(other, x))
        assert mine.n == other.n
        np.testing.assert_array_equal(mine.a, other.a)
        if k % 2:
            mine.n = other.n = 7 + k
            mine.a, other.a = np.full(2, 5.0 + k), np.full(2, 5.0 + k)
    assert compiled.cache_info().misses <= 2


class Counting:
    calls, last = 0, None

    def by_type(self, x):
        type(self).calls += 1
        return x * 2

    def by_class(self, x):
        self.__class__.calls += 1
        return x * 2

    @classmethod
    def of_class(cls, x):
        cls.calls += 1
        return x * 3

    def by_name(self, x):
        Counting.calls += 1
        Counting.last = x.sum()
        return x

    def read_by_itself(self, x):
        type(self).calls += 1
        return x * self.calls

    def only_set(self, x):
        type(self).last = x.sum()
        return x


@pytest.mark.parametrize("name", ["by_type", "by_class", "of_class", "by_name", "only_set"])
def test_attributes_of_classes_change_at_each_call(name: str, monkeypatch: Any) -> None:
    seen = []
    plain = lambda o, x: getattr(o, name)(x)
    for call in (plain, dsl.jit(plain)):
        monkeypatch.setattr(Counting, "calls", 0)
        monkeypatch.setattr(Counting, "last", None)
        for k in range(5):
            call(Counting(), X + k)
            last = Counting.last
            seen.append((Counting.calls, last if last is None else float(last)))
    assert seen[:5] == seen[5:]


def test_an_object_may_have_its_own_where_its_class_changes(monkeypatch: Any) -> None:
    class Inherits(Counting):
        pass

    results = []
    for function in (Counting.read_by_itself, dsl.jit(Counting.read_by_itself)):
        monkeypatch.setattr(Counting, "calls", 0)
        Inherits.calls = 10
        some = [Counting(), Counting(), Inherits()]
        some[1].calls = 100
        got = [function(some[k], X).tolist() for k in (0, 1, 2, 0, 1, 2, 1)]
        del some[1].calls, Inherits.calls
        got += [function(some[k], X).tolist() for k in (1, 2, 0, 1, 2)]
        results.append((got, Counting.calls, Inherits.calls))
    assert results[0] == results[1]


def test_numbers_of_a_list_that_cannot_be_inputs_beside_what_is_assigned() -> None:
    def plain(o, x):
        o.total = o.total + x.sum()
        items = o.items
        items[0] = items[0] + 1.0
        return x * items[0]

    compiled, results = dsl.jit(plain), []
    for function in (plain, compiled):
        o = types.SimpleNamespace(total=0.0, items=[1.0, 2.0])
        got = [function(o, X).tolist() for _ in range(4)]
        results.append((got, float(o.total), o.items))
    assert results[0] == results[1]


def test_a_number_of_a_list_that_is_put_where_it_was() -> None:
    def plain(o, x):
        if x.sum() > 6:
            o.items[0] = o.other.items[0]
        return x * 2

    results = []
    for function in (plain, dsl.jit(plain)):
        seen = []
        for k in range(4):
            o = types.SimpleNamespace(items=[1.0 + k, 2.0])
            o.other = o
            function(o, X * (k + 1))
            seen.append(o.items)
        results.append(seen)
    assert results[0] == results[1]


def test_other_arguments_for_which_tracing_needs_a_number() -> None:
    """What is an input for some arguments is compiled for with others, and counters stay inputs."""

    class Axis:
        n, calls = 3, 0

    def plain(o, x):
        o.calls += 1
        return x * o.n if x.ndim == 1 else x.sum(axis=o.n - 3)

    compiled, o = dsl.jit(plain), Axis()
    for k, x in enumerate([np.ones(3)] * 4 + [np.ones((2, 3)), np.ones((2, 3)), np.ones((2, 3))]):
        o.n = 3 + k % 2
        np.testing.assert_array_equal(compiled(o, x), plain(o, x))
    before = compiled.cache_info().misses
    for _ in range(3):
        compiled(o, np.ones((2, 3)))
    assert compiled.cache_info().misses == before
    with pytest.raises(TypeError):
        compiled(o)


def test_arrays_that_cannot_be_traced_lie_beside_others() -> None:
    table = {"w": np.ones(3), "names": np.array(["a"]), "rows": np.zeros(2, [("a", "f8")])}
    compiled = dsl.jit(lambda x: sum(x * v for k, v in table.items() if k == "w"))
    for k in range(3):
        table["w"][:] = k
        np.testing.assert_array_equal(compiled(X), X * k)
