"""What a function reads outside of itself is seen as it is at each call: numbers, arrays, functions and what containers hold."""

from __future__ import annotations

import functools
import itertools
import operator
import types
import weakref
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest

import dsl

X = np.arange(3.0) + 1
CONFIG = types.ModuleType("users_config")


class Pair(NamedTuple):
    first: float
    second: Any


@dataclass
class Record:
    number: float
    items: list[float]


class Table(dict):
    pass


class Thing:
    """Operators of its own, all of which read one number."""

    kind = 1.0

    def __init__(self, z: float = 2.0) -> None:
        self.z = z

    def times(self, x):
        return x * self.z

    def total(self, x):
        return (x * self.z).sum()

    def plus(self, shift, x):
        return x * self.z + shift

    def rate(self, step):
        return self.z

    def __call__(self, x):
        return x * self.z * 2

    def __add__(self, other):
        return self.z + other

    def __neg__(self):
        return -self.z

    def __bool__(self):
        return self.z > 1

    def __len__(self):
        return int(self.z)

    def __iter__(self):
        return iter([self.z, self.z])

    def __contains__(self, other):
        return self.z == other

    def __lt__(self, other):
        return self.z < other.z


Change = Callable[[], Any]


def changes() -> Iterator[tuple[str, Callable[[Any], Any], Change]]:
    """Yield functions and how something that they read changes."""
    numbers, table, nested = [1.0, 2.0], {"a": 1.0, "b": [1.0]}, (1.0, [2.0])
    some, queue, raw = {1, 2}, deque([1.0, 2.0]), bytearray(b"abc")
    thing, record = Thing(), Record(2.0, [1.0])
    space = types.SimpleNamespace(inner=types.SimpleNamespace(b=2.0))
    scaled = functools.partial(lambda x, c: x * c, c=2.0)
    bound = thing.times

    def default(x, c=2.0, *, k=3.0, items=[1.0]):  # noqa: B006
        return x * c * k * items[0]

    vars(CONFIG).update(rate=2.0, act=np.sin)
    yield "module", lambda x: x * CONFIG.rate, lambda: setattr(CONFIG, "rate", 5.0)
    yield "module's function", lambda x: CONFIG.act(x), lambda: setattr(CONFIG, "act", np.cos)
    yield "list item", lambda x: x * numbers[0], lambda: numbers.__setitem__(0, 6.0)
    yield "list sum", lambda x: x * sum(numbers), lambda: numbers.append(6.0)
    yield "list slice", lambda x: x * sum(numbers[1:]), lambda: numbers.__setitem__(1, 9.0)
    yield "list as array", lambda x: x * np.array(numbers).sum(), lambda: numbers.append(6.0)
    yield "nested", lambda x: x * table["b"][0], lambda: table["b"].__setitem__(0, 6.0)
    yield "get", lambda x: x * table.get("c", 1.0), lambda: table.update(c=8.0)
    yield "in", lambda x: x * (5 if "c" in table else 1), lambda: table.update(c=8.0)
    yield (
        "items",
        lambda x: x * sum(v for k, v in table.items() if k != "b"),
        lambda: table.update(d=8.0),
    )
    yield "merged", lambda x: x * {**table}["a"], lambda: table.update(a=8.0)
    yield "in a tuple", lambda x: x * nested[1][0], lambda: nested[1].__setitem__(0, 7.0)
    yield "set", lambda x: x * sum(some), lambda: some.add(9)
    yield "set in", lambda x: x * (5 if 44 in some else 1), lambda: some.add(44)
    yield "deque", lambda x: x * queue[0], lambda: queue.appendleft(5.0)
    yield "deque sum", lambda x: x * sum(queue), lambda: queue.append(5.0)
    yield "bytearray", lambda x: x * raw[0], lambda: raw.__setitem__(0, 9)
    yield "partial", lambda x: scaled(x), lambda: scaled.keywords.update(c=13.0)
    yield "defaults", lambda x: default(x), lambda: setattr(default, "__defaults__", (9.0,))
    yield "keyword defaults", lambda x: default(x), lambda: default.__kwdefaults__.update(k=8.0)
    yield (
        "list as default",
        lambda x: default(x),
        lambda: default.__kwdefaults__["items"].insert(0, 4.0),
    )
    yield "bound method", lambda x: bound(x), lambda: setattr(thing, "z", 3.0)
    yield "called", lambda x: thing(x), lambda: setattr(thing, "z", 3.0)
    yield "added", lambda x: (thing + 1.0) * x, lambda: setattr(thing, "z", 3.0)
    yield "negated", lambda x: x * -thing, lambda: setattr(thing, "z", 3.0)
    yield "truth", lambda x: x * (2 if thing else 3), lambda: setattr(thing, "z", 0.5)
    get, item, value = numbers.__getitem__, table.__getitem__, table.get
    first = operator.itemgetter(0)
    yield "list's getter", lambda x: x * get(0), lambda: numbers.__setitem__(0, 5.0)
    yield "dict's getter", lambda x: x * item("a"), lambda: table.update(a=5.0)
    yield "dict's get", lambda x: x * value("a"), lambda: table.update(a=5.0)
    yield (
        "getitem",
        lambda x: x * operator.getitem(table, "a"),
        lambda: table.update(a=5.0),
    )
    yield "itemgetter", lambda x: x * first(numbers), lambda: numbers.__setitem__(0, 5.0)
    known, there = weakref.ref(thing), functools.lru_cache(lambda: thing)
    yield "weakref", lambda x: x * known().z, lambda: setattr(thing, "z", 3.0)
    yield "cached", lambda x: x * there().z, lambda: setattr(thing, "z", 3.0)
    things = {"a": thing, "b": [thing]}
    yield (
        "objects of a dict",
        lambda x: sum(x * held.z for held in things.values() if held is not things["b"]),
        lambda: setattr(thing, "z", 3.0),
    )
    yield (
        "objects of a list of a dict",
        lambda x: sum(x * held[0].z for name, held in things.items() if name == "b"),
        lambda: setattr(thing, "z", 3.0),
    )
    yield "length", lambda x: x * len(thing), lambda: setattr(thing, "z", 3.0)
    yield "iterated", lambda x: x * sum([v + 1 for v in thing]), lambda: setattr(thing, "z", 3.0)
    yield "contains", lambda x: x * (2 if 8.0 in thing else 3), lambda: setattr(thing, "z", 8.0)
    yield "less", lambda x: x * (1 if thing < Thing() else 5), lambda: setattr(thing, "z", 1.0)
    yield "smallest", lambda x: x * min(thing, Thing()).z, lambda: setattr(thing, "z", -7.0)
    yield "sorted", lambda x: x * sorted([thing, Thing()])[0].z, lambda: setattr(thing, "z", -7.0)
    yield (
        "record",
        lambda x: x * record.number * record.items[0],
        lambda: setattr(record, "number", 5.0),
    )
    yield "record's list", lambda x: x * record.items[0], lambda: record.items.insert(0, 5.0)
    yield "namespace", lambda x: x * space.inner.b, lambda: setattr(space.inner, "b", 8.0)
    yield (
        "other namespace",
        lambda x: x * space.inner.b,
        lambda: setattr(space, "inner", types.SimpleNamespace(b=3.0)),
    )
    yield (
        "attrgetter",
        lambda x: x * operator.attrgetter("inner.b")(space),
        lambda: setattr(space.inner, "b", 8.0),
    )
    yield "instance over class", lambda x: x * thing.kind, lambda: setattr(thing, "kind", 9.0)
    for made in (Table(a=1.0), defaultdict(float, a=1.0), OrderedDict(a=1.0), Counter(a=1)):
        name = type(made).__name__
        yield name, lambda x, held=made: x * held["a"], lambda held=made: held.update(a=4)


CHANGES = {name: (plain, change) for name, plain, change in changes()}


@pytest.mark.parametrize("name", CHANGES)
def test_changes_outside_are_seen(name: str) -> None:
    plain, change = {name: rest for name, *rest in changes()}[name]
    compiled = dsl.jit(lambda x: plain(x))
    for _ in range(3):
        np.testing.assert_allclose(compiled(X), plain(X))
    change()
    for _ in range(3):
        np.testing.assert_allclose(compiled(X), plain(X))
    assert compiled.cache_info().misses == 2


def around(thing: Thing) -> Iterator[tuple[str, Callable[[Any], Any]]]:
    """Yield functions that read an object which nothing but what is compiled holds."""
    rule = dsl.custom_vjp(thing.times)
    rule.defvjp(lambda x: (thing.times(x), x), lambda x, g: (g * thing.z,))
    total = dsl.jit(lambda x, held: (x * held.z).sum())
    for name, fn in (
        ("method", thing.times),
        ("called", thing),
        ("partial", functools.partial(lambda held, x: x * held.z, thing)),
        ("rule", rule),
        ("vectorized", np.vectorize(thing.times)),
        ("bound", functools.partial(thing.plus, 0.0)),
    ):
        compiled = dsl.jit(fn)
        yield name, compiled
        yield f"{name} in a function", lambda x, compiled=compiled: compiled(x)
        yield f"vmap of {name}", dsl.vmap(fn)
        yield f"checkpoint of {name}", dsl.checkpoint(dsl.jit(fn))
        yield f"jacobian of {name}", dsl.jit(dsl.jacrev(fn))
    first = dsl.grad(functools.partial(total, held=thing))
    yield "gradient", first
    state = dsl.optim.SGD(1.0).init(X)
    minimize = dsl.optim.SGD(1.0).minimize(lambda w: (0.0 * w).sum() + total(w, thing))
    yield "step", lambda x: x - minimize(x, state)[1]
    by_method = dsl.optim.SGD(1.0).minimize(thing.total)
    yield "step of method", lambda x: x - by_method(x, state)[1]
    scheduled = dsl.optim.SGD(thing.rate).minimize(lambda w: w.sum())
    yield "scheduled step", lambda x: x - scheduled(x, state)[1]
    trained = dsl.parallel.DataParallel(thing.total, dsl.optim.SGD(1.0))
    yield "trained", lambda x: x - trained.step(x, state)[1]
    yield "product", lambda x: dsl.jvp(first, (x,), (x,))[0]


AROUND = [name for name, _ in around(Thing())]


@pytest.mark.parametrize("name", AROUND)
def test_objects_that_only_the_compiled_function_holds_are_seen_as_they_are(name: str) -> None:
    thing = Thing(2.0)
    compiled = dict(around(thing))[name]
    before = compiled(X)
    thing.z = 6.0
    np.testing.assert_allclose(compiled(X), 3.0 * before)


def test_methods_of_arrays_are_compiled_and_read_them_as_they_are() -> None:
    w = np.array([1.0, 2.0, 3.0])
    compiled, slope = dsl.jit(w.dot), dsl.grad(w.dot)
    assert compiled(X) == w.dot(X)
    w *= 3
    assert compiled(X) == w.dot(X)
    np.testing.assert_array_equal(slope(X), w)


def test_a_call_method_that_a_class_gets_later_is_called() -> None:
    class Callable:
        def __call__(self, x):
            return 2 * x

    compiled = dsl.jit(Callable())
    np.testing.assert_array_equal(compiled(X), 2 * X)
    Callable.__call__ = lambda self, x: 3 * x
    np.testing.assert_array_equal(compiled(X), 3 * X)


@pytest.mark.parametrize("transform", [dsl.jit, dsl.grad, dsl.checkpoint])
def test_an_attribute_that_was_none_is_assigned_by_what_is_transformed(transform: Any) -> None:
    thing = types.SimpleNamespace(last=None)

    def loss(x):
        thing.last = 2 * x
        return (x**2).sum()

    compiled = transform(loss)
    for scale in (1.0, 3.0):
        compiled(scale * X)
        np.testing.assert_array_equal(thing.last, 2 * scale * X)


def arrays(w: np.ndarray) -> Iterator[tuple[str, Callable[[Any], Any]]]:
    """Yield functions that find an array in many ways."""

    def default(x, w=w):
        return x * w

    def keyword(x, *, w=w):
        return x * w

    class Holder:
        kept = w

        def times(self, x, w=w):
            return x * w * self.kept

    holder, given = Holder(), functools.partial(lambda x, w: x * w, w=w)
    pair, table, items, queue = (w, w), {"a": w, "name": np.array(["text"])}, [w, w], deque([w])
    named, space, deep = Pair(1.0, w), types.SimpleNamespace(w=w, items=[w]), {"layer": {"w": w}}
    yield "default", lambda x: default(x)
    yield "keyword", lambda x: keyword(x)
    yield "partial", lambda x: given(x)
    yield "method", lambda x: holder.times(x)
    yield "tuple", lambda x: x * pair[0]
    yield "unpacked", lambda x: (lambda a, b: x * a * b)(*pair)
    yield "dict", lambda x: x * table["a"]
    yield "get", lambda x: x * table.get("a")
    yield "values", lambda x: x * next(iter(table.values()))
    yield "items", lambda x: sum(v * x for k, v in table.items() if k == "a")
    yield "merged", lambda x: x * {**table}["a"]
    yield "deep", lambda x: sum(x * layer["w"].sum() for layer in deep.values())
    yield "list", lambda x: x * items[1]
    yield "sum", lambda x: x * sum(items)
    yield "loop", lambda x: sum([x * v for v in items])
    yield "zip", lambda x: sum(x * a * b for a, b in zip(items, items))
    yield "chain", lambda x: sum(x * v for v in itertools.chain(items, pair))
    yield "stack", lambda x: x * np.stack(items).sum(0)
    yield "array", lambda x: x * np.array(items).sum(0)
    yield "concatenate", lambda x: x * np.concatenate(pair).sum()
    yield "named tuple", lambda x: x * named.second
    yield "deque", lambda x: x * queue[0]
    yield "deque loop", lambda x: sum([x * v for v in queue])
    yield "namespace", lambda x: x * space.w * space.items[0]
    yield "vars", lambda x: x * vars(space)["w"]
    yield "vectorize", lambda x: np.vectorize(lambda a: a * w[0])(x)


ARRAYS = [name for name, _ in arrays(np.ones(3))]


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_outside_are_inputs(name: str) -> None:
    w = np.ones(3)
    plain = dict(arrays(w))[name]
    compiled = dsl.jit(lambda x: plain(x))
    for k in range(4):
        w[:] = k
        np.testing.assert_allclose(compiled(X), plain(X))
    assert compiled.cache_info().misses == 1
