"""`input_pipeline`: what feeds a training loop is made ahead of time, in threads.

In: a generator function, an iterable, or several of them (shards). Out: an iterable of their items, which are trees of
arrays: mapped, shuffled and batched as asked.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from dsl.errors import ConfigError, ShapeError, TypeRuleError, UnsupportedError
from dsl.frontend.trees import flatten, leaves_with_paths, unflatten
from dsl.runtime.pipeline import Assembly, Running, Stream, start

__all__ = ["Pipeline", "input_pipeline"]


def input_pipeline(
    source: Any, workers: int = 2, prefetch: int = 4, batch: int | None = None, shuffle: int | None = None,
    seed: int | None = None, ordered: bool = True, *, drop_last: bool = False, map: Callable[[Any], Any] | None = None,
) -> Pipeline:  # fmt: skip
    """Return an iterable over the items of a source that are made ahead of time, in threads.

    `source` is a generator function, an iterable, or a list of generator functions or iterators: shards, which `workers`
    threads read at the same time. A single source is read by one thread; `map` is then applied to its items by
    `workers`. Up to `prefetch` results, items or batches, are ready ahead, and as many items, at least a batch, in each
    thread.

    `shuffle=k` chooses each item at random from k. `batch=n` stacks n items, trees of arrays, leaf by leaf; the last batch may
    be smaller, or is left out with `drop_last`. If `ordered`, items come in the order of the source, or one of each shard in turn,
    however fast the threads are, and with a `seed` are shuffled the same way in each run (and differently in each epoch).
    Otherwise they come as they are ready.

    Each `for` starts anew; leaving it stops the threads. What a thread raises is raised by the loop, in its place.

    >>> squares = input_pipeline(range(5), map=lambda x: x * x, batch=2)
    >>> list(squares)
    [array([0, 1]), array([4, 9]), array([16])]
    """
    _check_count("workers", workers)
    _check_count("prefetch", prefetch)
    _check_count("batch", batch, optional=True)
    _check_count("shuffle", shuffle, optional=True)
    return Pipeline(
        source,
        workers,
        prefetch,
        ordered,
        map,
        Assembly(batch, shuffle, None, drop_last, _stack),
        seed,
    )


def _check_count(name: str, value: Any, optional: bool = False) -> None:
    if optional and value is None:
        return
    if not isinstance(value, int | np.integer) or value < 1:
        raise ConfigError(
            f"input_pipeline: {name} must be 1 or more{' or None' * optional}, got {value!r}"
        )


class Pipeline:
    """What `input_pipeline` returns: each iteration is an epoch, with threads of its own."""

    def __init__(
        self, source: Any, workers: int, prefetch: int, ordered: bool, function: Callable[[Any], Any] | None,
        assembly: Assembly, seed: int | None,
    ) -> None:  # fmt: skip
        self._shards = _shards(source)
        self._workers, self._prefetch, self._ordered = workers, prefetch, ordered
        self._function, self._assembly, self._seed = function, assembly, seed
        self._epoch = 0

    def __iter__(self) -> Running:
        """Start the threads of an epoch."""
        self._check_fresh()
        seed = None if self._seed is None else f"{self._seed}, epoch {self._epoch}"
        self._epoch += 1
        return start(
            _dealt(self._shards, self._workers), self._function, self._workers, self._prefetch,
            self._ordered, _seeded(self._assembly, seed),
        )  # fmt: skip

    def _check_fresh(self) -> None:
        if self._epoch and any(map(_is_iterator, self._shards)):
            raise UnsupportedError(
                "input_pipeline: an iterator gives its items once, and this one has been iterated over before",
                remedy="give the generator function itself, not what it returns",
            )


def _seeded(assembly: Assembly, seed: str | None) -> Assembly:
    return Assembly(assembly.batch, assembly.shuffle, seed, assembly.drop_last, assembly.stack)


# --- Sources -------------------------------------------------------------------------------------


def _is_iterator(source: Any) -> bool:
    return hasattr(source, "__next__")


def _shards(source: Any) -> list[Any]:
    """Return the parts of a source: the entries of a list of functions and iterators, or the source itself."""
    several = isinstance(source, list | tuple) and all(
        callable(s) or _is_iterator(s) for s in source
    )
    if several and source:
        return list(source)
    if not callable(source) and not hasattr(source, "__iter__"):
        raise TypeRuleError(
            f"input_pipeline: the source is a {type(source).__name__}",
            remedy="give a generator function, an iterable, or a list of generator functions",
        )
    return [source]


def _dealt(shards: Sequence[Any], workers: int) -> list[Stream]:
    """Deal shards to workers; a worker reads its shards one after the other."""
    return [partial(_read, shards[k::workers]) for k in range(min(workers, len(shards)))]


def _read(shards: Sequence[Any]) -> Iterator[Any]:
    """Yield the items of shards; a generator is closed at the end, in the thread that ran it."""
    for shard in shards:
        items = iter(shard() if callable(shard) else shard)
        try:
            for item in items:  # noqa: UP028  `yield from` would close a file as well
                yield item
        finally:
            if inspect.isgenerator(items):
                items.close()


# --- Batches -------------------------------------------------------------------------------------


def _stack(items: list[Any]) -> Any:
    """Return the items as one tree, stacked leaf by leaf."""
    flat = [flatten(item) for item in items]
    structure = flat[0][1]
    for k, (_, other) in enumerate(flat):
        if other != structure:
            raise TypeRuleError(
                f"input_pipeline: the items of a batch differ: item 0 is {structure}, item {k} is {other}"
            )
    columns = zip(*(leaves for leaves, _ in flat))
    return unflatten(
        structure, [_stack_leaf(items[0], k, column) for k, column in enumerate(columns)]
    )


def _stack_leaf(example: Any, k: int, column: Sequence[Any]) -> np.ndarray:
    arrays = [np.asarray(leaf) for leaf in column]
    shapes = dict.fromkeys(array.shape for array in arrays)
    if len(shapes) > 1:
        path = [path for path, _ in leaves_with_paths(example, "item")][k]
        raise ShapeError(
            f"input_pipeline: {path} has different shapes in one batch: {', '.join(map(str, shapes))}",
            remedy="make them equal with `map=`, or use a PaddingFIFOQueue",
        )
    return np.stack(arrays)
