"""A function that was compiled for one object serves others of its class, and never what differs from it."""

from __future__ import annotations

import collections
import copy
import functools
import gc
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pytest

import dsl

X = np.arange(3.0) + 1


class Layer:
    def __init__(self, w: float, b: float = 1.0) -> None:
        self.w, self.b = np.full(3, float(w)), b

    def __call__(self, x):
        return self.w * x + self.b

    def less(self, x):
        return self.w * x - self.b


class Thing:
    """Any attributes."""

    kind = 2.0

    def __init__(self, /, **held: Any) -> None:
        vars(self).update(held)

    def scale(self):
        return self.kind


class Derived(Thing):
    kind = 3.0

    def scale(self):
        return super().scale() + 1


class Slotted:
    __slots__ = ("extra", "n", "w")

    def __init__(self, n: float) -> None:
        self.w, self.n = np.full(3, n + 1.0), n


class Valued:
    def __init__(self, v: int) -> None:
        self.v = v

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Valued) and self.v == other.v

    def __hash__(self) -> int:
        return hash(self.v)

    def __lt__(self, other: Valued) -> bool:
        return self.v < other.v

    def __index__(self) -> int:
        return self.v

    def __len__(self) -> int:
        return 3

    def __getitem__(self, k: int) -> int:
        return self.v + k


class Cached:
    def __init__(self, v: int) -> None:
        self.v = v

    @functools.cached_property
    def table(self):
        return np.full(3, self.v)


@runtime_checkable
class Named(Protocol):
    name: int


@dataclass
class Record:
    a: float
    w: np.ndarray


def full(k: float) -> np.ndarray:
    return np.full(3, float(k))


def tied(k: int, same: bool) -> Thing:
    a = full(k)
    return Thing(a=a, b=a if same else full(k + 5), n=float(k))


def couple(k: int, same: bool) -> Thing:
    p = Thing(n=1.0 * k)
    return Thing(p=p, q=p if same else Thing(n=3.0))


def chain(k: int, length: int) -> Any:
    made = None
    for i in range(length):
        made = Thing(v=1.0 * k + i, next=made)
    return made


def in_layers(o, x):
    for layer in o.layers:
        x = layer(x)
    return x


def in_table(o, x):
    for key, layer in o.table.items():
        x = layer(x) * (2 if key == "a" else 3)
    return x + o.table["a"].b


def added_in_place(o, x):
    o.a += 1
    return o.b * x


def counted(o, x):
    o.n += 1
    o.total = o.total + x.sum()
    o.seen.append(x[0])
    return o.total * o.n


def returned(o, x):
    o.p.n = o.p.n + 1
    return o, o.p, x * 2


def exchanged(o, x):
    o.p, o.q = o.q, o.p
    return x * o.p.n


def caught(o, x):
    try:
        return x * o.n
    except AttributeError:
        return x * 7


def kept_for_later(o, x):
    found = x * o.table
    o.v = o.v + 1
    return found


def walked(o, x):
    node = o
    while node is not None:
        x, node = x + node.v, node.next
    return x


def matched(o, x):
    match o.p:
        case Thing(n=1.0):
            return x
    return x * 2


def in_a_set(o, x):
    for each in {o.p, o.q}:
        x = x * 2 + each.n
    return x


def branches(o, x):
    if x[0] > o.n:
        o.n, o.w = o.n + 1, o.w * 2
    for i in range(3):
        o.w[i] += x[i] * o.n
    return o.w.sum() * o.n


def variable_of_a_method(o, x):
    less = o.layer.less
    return less(x) + o.layer(x)


def of_a_record(o, x):
    made = Record(o.record.a, o.record.w * x)
    return made.a + made.w


Many = Iterator[tuple[str, Callable[..., Any], list[Any], int]]


def programs() -> Many:
    """Yield functions, objects that they are called with one after the other, and how often that compiles."""
    four = range(4)
    yield (
        "numbers and arrays",
        lambda o, x: o.w @ x * o.n,
        [Thing(w=full(k), n=0.5 * k) for k in four],
        2,
    )
    yield "nested", lambda o, x: o.l.w * x + o.l.b, [Thing(l=Layer(k, 1.0 * k)) for k in four], 2
    yield "called", lambda o, x: o.l(x) + o.l.less(x), [Thing(l=Layer(k, 1.0 * k)) for k in four], 2
    yield "list", in_layers, [Thing(layers=[Layer(k), Layer(k + 1)]) for k in four], 1
    yield "one object twice", in_layers, [
        *(Thing(layers=[layer, layer]) for layer in map(Layer, (1, 2))), Thing(layers=[Layer(4), Layer(5)]), Thing(layers=[Layer(1)]),
    ], 3  # fmt: skip
    yield (
        "dict",
        in_table,
        [Thing(table={"a": Layer(k, 1.0 * k), "b": Layer(k + 1)}) for k in four],
        2,
    )
    yield (
        "order of a dict",
        in_table,
        [Thing(table={k: Layer(1) for k in keys}) for keys in ("ab", "ba")],
        2,
    )
    yield "deque", lambda o, x: o.d[0](x), [Thing(d=collections.deque([Layer(k)])) for k in four], 1
    yield "tuple", lambda o, x: o.t[0](x) + o.t[1][0], [Thing(t=(Layer(k), [5.0])) for k in four], 1
    yield "one array twice", added_in_place, [tied(k, k % 2 == 1) for k in four], 2
    yield (
        "identity of arrays",
        lambda o, x: x * (1 if o.a is o.b else 2),
        [tied(k, k % 2 == 0) for k in four],
        2,
    )
    yield (
        "identity",
        lambda o, x: x * (1 if o.p is o.q else 2) + o.p.n,
        [couple(k, k % 2 == 0) for k in four],
        4,
    )
    yield (
        "equality",
        lambda o, x: x * (1 if o.p == o.q else 2),
        [couple(1, k % 2 == 0) for k in four],
        4,
    )
    yield (
        "none",
        lambda o, x: x if o.w is None else x * o.w,
        [Thing(w=None if k % 2 else full(k)) for k in four],
        2,
    )
    yield "assigned", counted, [Thing(n=k, total=1.0 * k, seen=[]) for k in four], 5
    yield "returned", returned, [couple(k, k % 2 == 1) for k in four], 4
    yield "exchanged", exchanged, [couple(k, False) for k in four], 2
    yield "branches", branches, [Thing(n=1.0 * k, w=full(k)) for k in four], 2
    yield (
        "presence",
        lambda o, x: x * (o.n if hasattr(o, "n") else 3),
        [Thing(), Thing(n=2.0), Thing()],
        2,
    )
    yield "classes", lambda o, x: x * o.scale(), [Thing(), Derived(), Thing(), Derived()], 2
    yield (
        "attribute over class",
        lambda o, x: x * o.scale(),
        [Thing(), Thing(kind=5.0), Thing(scale=lambda: 4.0)],
        3,
    )
    yield "slots", lambda o, x: o.w * x * o.n, [Slotted(1.0 * k) for k in four], 2
    yield (
        "text",
        lambda o, x: x * {"a": 1, "b": 2}[o.mode],
        [Thing(mode="ab"[k % 2]) for k in four],
        2,
    )
    yield "functions", lambda o, x: o.f(x), [Thing(f=[np.sin, np.cos][k % 2]) for k in four], 2
    yield "bound methods", lambda o, x: o.f(x), [Thing(f=Layer(k, 1.0 * k).less) for k in four], 2
    yield (
        "variable of a method",
        variable_of_a_method,
        [Thing(layer=Layer(k, 1.0 * k)) for k in four],
        2,
    )
    yield "record", of_a_record, [Thing(record=Record(1.0 * k, full(k))) for k in four], 2
    yield (
        "namespace",
        lambda o, x: x * o.c.rate,
        [Thing(c=types.SimpleNamespace(rate=0.1 * k)) for k in four],
        2,
    )
    yield "chain", walked, [chain(k, 1 + k % 2) for k in four], 4
    yield "sizes", lambda o, x: (o.w * x[0]).sum(), [Thing(w=np.ones(k % 2 + 2)) for k in four], 2
    yield (
        "strides",
        lambda o, x: o.w * x,
        [Thing(w=np.arange(6.0)[:: k % 2 + 1][:3]) for k in four],
        2,
    )
    yield (
        "dtypes",
        lambda o, x: o.w * x * o.n,
        [Thing(w=full(1).astype(t), n=t(2)) for t in (float, np.float32, int)],
        3,
    )
    yield "sorted", lambda o, x: sorted(o.l, key=lambda l: l.b)[0](x), [
        Thing(l=[Layer(1, k % 2), Layer(2, (k + 1) % 2)]) for k in four
    ], 2  # fmt: skip
    yield (
        "signed zero",
        lambda o, x: np.copysign(x, o.n),
        [Thing(n=n) for n in (0.0, -0.0, np.nan, 0.0)],
        2,
    )
    yield (
        "largest",
        lambda o, x: x * max(o.l).v - sorted(o.l)[0].v,
        [Thing(l=[Valued(k), Valued(2)]) for k in four],
        4,
    )
    yield "in turn", lambda o, x: x * next(reversed(o)) + x[o], [Valued(k % 3) for k in four], 4
    yield "caught", caught, [Thing(), Thing(n=2.0), Thing()], 2
    yield "kept", kept_for_later, [Cached(k) for k in four], 4
    # What is not traced may see which object it is: compiled for each.
    yield (
        "protocol",
        lambda o, x: x * (2 if isinstance(o, Named) else 3),
        [Thing(name=1), Thing(n=1), Thing(name=2)],
        3,
    )
    yield "hash", lambda o, x: x * hash(o), [Valued(k) for k in four], 4
    yield (
        "key",
        lambda o, x: x * {Valued(1): 2.0, Valued(2): 3.0}.get(o, 7.0),
        [Valued(k) for k in four],
        4,
    )
    yield "match", matched, [couple(k, False) for k in four], 4
    yield "copy", lambda o, x: copy.copy(o).n * x, [Thing(n=1.0 * k) for k in four], 4
    yield (
        "partial",
        lambda o, x: o.f(x),
        [Thing(f=functools.partial(np.multiply, k)) for k in four],
        4,
    )
    yield (
        "weak reference",
        lambda o, x: x * o.ref().n,
        [Thing(ref=weakref.ref(k), kept=k) for k in (Thing(n=1.0), Thing(n=2.0))],
        2,
    )


NAMES = [name for name, *_ in programs()]


def state(item: Any, seen: dict[int, int]) -> Any:
    """Describe an object and all that it holds, and which of it is the same object."""
    if isinstance(item, np.ndarray):
        return item.dtype.str, item.tolist(), seen.setdefault(id(item), len(seen))
    if isinstance(item, (list, tuple, collections.deque)):
        return type(item), [state(part, seen) for part in item]
    if isinstance(item, dict):
        return {key: state(part, seen) for key, part in item.items()}
    if isinstance(item, Slotted):
        return state([item.w, item.n], seen)
    if isinstance(item, (Cached, Thing, Layer, Record, types.SimpleNamespace)):
        if id(item) in seen:
            return seen[id(item)]
        seen[id(item)] = len(seen)
        return type(item), state(vars(item), seen)
    return type(item), repr(item) if isinstance(item, (str, float, int, np.generic)) else None


def test_weak_references_of_two_objects_are_exchanged() -> None:
    results = []
    plain = lambda o, x: x * o.ref().a + o.kept.a
    for function in (plain, dsl.jit(plain)):
        kept = [Thing(a=full(1)), Thing(a=full(2))]
        a, b = (Thing(ref=weakref.ref(k), kept=k) for k in kept)
        got = [function(o, X).tolist() for o in (a, b)]
        a.ref, b.ref = b.ref, a.ref
        results.append(got + [function(o, X).tolist() for o in (a, b)])
    assert results[0] == results[1]


@pytest.mark.parametrize("name", NAMES)
def test_one_object_after_the_other(name: str) -> None:
    plain, ours, most = {n: rest for n, *rest in programs()}[name]
    _, theirs, _ = {n: rest for n, *rest in programs()}[name]
    compiled = dsl.jit(plain)
    for _ in range(2):
        for mine, other in zip(ours, theirs, strict=True):
            got, expected = compiled(mine, X), plain(other, X)
            assert str(state([got, mine, X], {})) == str(state([expected, other, X], {}))
    assert compiled.cache_info().misses <= most
    assert compiled.cache_info().hits == 2 * len(ours) - compiled.cache_info().misses


class Model:
    def __init__(self, k: float) -> None:
        self.w, self.n = full(k), k

    @dsl.jit
    def step(self, x):
        return self.w * x * self.n

    @dsl.jit
    def of_its_own(self, x):
        return x * (id(self) == self.n)


def test_a_method_of_many_objects_is_compiled_twice_and_keeps_none() -> None:
    alive = []
    for k in range(200):
        model = Model(float(k))
        np.testing.assert_array_equal(model.step(X), X * k * k)
        alive.append(weakref.ref(model))
    del model
    gc.collect()
    assert not any(ref() is not None for ref in alive)
    assert Model.step.cache_info() == (198, 2, 2)
    assert "`n` changed from 0.0 to 1.0; from now on calls read `n`" in Model.step.explain()


def test_of_functions_for_certain_objects_the_latest_are_kept() -> None:
    models = [Model(float(k)) for k in range(70)]
    for model in models:
        model.n = id(model)
        for _ in range(2):
            np.testing.assert_array_equal(model.of_its_own(X), X)
    assert Model.of_its_own.cache_info() == (70, 70, 64)


def test_the_order_of_a_set_depends_on_its_objects() -> None:
    compiled = dsl.jit(in_a_set)
    for k in range(4):
        o = couple(k, False)
        np.testing.assert_array_equal(compiled(o, X), in_a_set(o, X))


@pytest.mark.parametrize("backend", ["native", "interpreter"])
def test_objects_as_several_arguments(backend: str) -> None:
    def plain(a, b, x):
        return x * (1 if a is b else 2) * a.n + b.w

    compiled, one, two = dsl.jit(plain), Model(1.0), Model(2.0)
    with dsl.config.override(backend=backend):
        for _ in range(2):
            for a, b in ((one, two), (one, one), (two, two), (two, one), (Model(3.0), Model(4.0))):
                np.testing.assert_array_equal(compiled(a, b, X), plain(a, b, X))
    assert compiled.cache_info().misses <= 4


def test_arrays_of_one_object_that_become_one_or_two() -> None:
    """What was one array when the function was traced may be two in the next call, and the other way round."""

    def plain(o, x):
        o.a += 1
        return o.b.sum() * x

    compiled, mine, other = dsl.jit(plain), tied(1, True), tied(1, True)
    for k in range(6):
        for o in (mine, other):
            o.b = o.a if k % 2 else np.ones(3)
        np.testing.assert_array_equal(compiled(mine, X), plain(other, X))
    assert compiled.cache_info().misses == 2


def test_numbers_of_objects_in_a_dict_outside_are_looked_at() -> None:
    table = {"a": Thing(n=1.0), "b": Thing(n=2.0)}
    compiled = dsl.jit(lambda x: sum(x * o.n for _, o in table.items()))
    for k in range(4):
        table["b"].n = 2.0 + k
        np.testing.assert_array_equal(compiled(X), X * (3.0 + k))


class Scaled:
    def __init__(self, n: float) -> None:
        self.n, self.w = n, full(n)

    def step(self, x):
        return x * self.n + self.w

    __call__ = step


@pytest.mark.parametrize(
    "taken", [lambda o: o.step, lambda o: o, lambda o: functools.partial(Scaled.step, o)]
)
def test_objects_that_the_compiled_function_belongs_to(taken: Any) -> None:
    o = Scaled(1.0)
    compiled = dsl.jit(taken(o))
    for k in range(5):
        o.n, o.w = 1.0 * k, full(k + 1)
        np.testing.assert_array_equal(compiled(X), X * k + k + 1)
    assert compiled.cache_info().misses == 2


class Trained:
    """Compiles a method of its own, as many do."""

    def __init__(self, n: float) -> None:
        self.n, self.w, self.settings = n, full(n), {"rate": n}
        self.step = dsl.jit(self._step)

    def _step(self, x):
        self.n += 1
        return x * self.n + self.w * self.settings["rate"]


class Doubly(Trained):
    pass


def test_methods_that_are_compiled_for_each_object_take_over_what_others_have() -> None:
    misses, alive = 0, []
    for k in range(20):
        kind = Doubly if k % 5 == 0 else Trained
        mine, other = kind(float(k)), kind(float(k))
        for _ in range(3):
            np.testing.assert_array_equal(mine.step(X), other._step(X))
            assert mine.n == other.n
        misses += mine.step.cache_info().misses
        alive.append(weakref.ref(mine))
    assert misses <= 6
    assert mine.step.cache_info() == (3, 0, 1)
    assert "compiled 0 times\n  taken over from another function" in mine.step.explain()
    del mine
    gc.collect()
    assert not any(ref() is not None for ref in alive)


def test_functions_that_close_over_objects_take_over_what_others_have() -> None:
    def make(model, other, k):
        return lambda x: x * model.n + model.w * k + (other is model)

    misses = 0
    for k in range(12):
        model = Model(float(k))
        plain = make(model, model if k % 2 else Model(1.0), k // 6)
        compiled = dsl.jit(plain)
        for _ in range(3):
            np.testing.assert_array_equal(compiled(X), plain(X))
            model.n += 1
        misses += compiled.cache_info().misses
    assert misses <= 6


def test_other_options_take_nothing_over() -> None:
    for backend in ("native", "interpreter"):
        with dsl.config.override(backend=backend):
            scaled = Scaled(2.0)
            compiled = dsl.jit(scaled.step)
            np.testing.assert_array_equal(compiled(X), scaled.step(X))
            made = compiled.lower(X).executable
            assert hasattr(made, "native") == (backend == "native")


def test_many_threads_with_objects_of_their_own() -> None:
    step, wrong = dsl.jit(lambda o, x: o.w * x * o.n), []

    def work(k: int) -> None:
        for i in range(100):
            model = Model(float(k + i))
            if not np.array_equal(step(model, X), X * model.n * model.n):
                wrong.append((k, i))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert step.cache_info().misses == 2
