"""Queues for Python threads and for graphs: outside traced code their methods wait, inside it they make nodes.

In a graph `enqueue` and `close` return operations and `dequeue` tensors, which wait when a step runs them. In a function
under `dsl.jit` they happen in program order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dsl.errors import ShapeError, UnsupportedError
from dsl.frontend.scopes import Trace, current_scope, current_trace, here
from dsl.frontend.traced import as_dim, cast, lift, read, wrap
from dsl.ir.dims import DimLike, Symbol
from dsl.ir.graph import Node, Value
from dsl.ir.types import DTYPES, I64, TensorType
from dsl.runtime import queues as waiting
from dsl.session.graph import Operation, group

__all__ = ["FIFOQueue", "PaddingFIFOQueue", "PriorityQueue", "RandomShuffleQueue"]


class _InGraphs(waiting.Queue):
    """What all queues do in traced code."""

    def _made(self) -> None:
        trace = current_trace()
        if trace is not None and trace.is_graph:
            trace.house(self)

    def enqueue(self, element: Any, timeout: float | None = None) -> Any:
        """Put one element in, waiting for room."""
        trace = current_trace()
        if trace is None:
            return super().enqueue(element, timeout)
        _refuse_timeout(timeout)
        return self._act(trace, "enqueue", self._inputs(element, None))

    def enqueue_many(self, batch: Any, timeout: float | None = None) -> Any:
        """Put in the rows of a batch, one by one as there is room."""
        trace = current_trace()
        if trace is None:
            return super().enqueue_many(batch, timeout)
        _refuse_timeout(timeout)
        return self._act(trace, "enqueue_many", self._inputs(batch, Symbol("n")))

    def dequeue(self, timeout: float | None = None) -> Any:
        """Take one element out, waiting for it."""
        trace = current_trace()
        if trace is None:
            return super().dequeue(timeout)
        _refuse_timeout(timeout)
        return self._taken(trace, "dequeue", (), None)

    def dequeue_many(self, n: Any, timeout: float | None = None) -> Any:
        """Take `n` elements out as one batch, waiting for them."""
        trace = current_trace()
        if trace is None:
            return super().dequeue_many(n, timeout)
        _refuse_timeout(timeout)
        return self._taken(trace, "dequeue_many", (_count(n),), as_dim(n))

    def dequeue_up_to(self, n: Any, timeout: float | None = None) -> Any:
        """Take `n` elements out as one batch; of a closed queue, what is left if that is fewer."""
        trace = current_trace()
        if trace is None:
            return super().dequeue_up_to(n, timeout)
        _refuse_timeout(timeout)
        return self._taken(trace, "dequeue_up_to", (_count(n),), Symbol("n"))

    def close(self, cancel_pending_enqueues: bool = False) -> Any:
        """Let nothing more in."""
        trace = current_trace()
        if trace is None:
            return super().close(cancel_pending_enqueues)
        attrs = {"cancel": True} if cancel_pending_enqueues else {}
        return self._act(trace, "close_queue", (), **attrs)

    def size(self) -> Any:
        """Return how many elements there are."""
        trace = current_trace()
        if trace is None:
            return super().size()
        node = current_scope().node("queue_size", (), {"queue": trace.adopt(self)})
        return wrap(node.output)

    # -- nodes ------------------------------------------------------------------------------------------------------

    def _node(self, trace: Trace, op: str, inputs: Sequence[Value], **options: Any) -> Node:
        attrs = {"queue": trace.adopt(self), **options.pop("attrs", {})}
        return current_scope().node(op, inputs, attrs, **options)

    def _act(self, trace: Trace, op: str, inputs: Sequence[Value], **attrs: Any) -> Any:
        node = self._node(trace, op, inputs, attrs=attrs)
        if not trace.is_graph or current_scope() is not trace.root:
            return None
        return group(Operation(trace.graph, (node,), op), name=f"{self.name}/{op}")  # type: ignore[attr-defined]

    def _taken(self, trace: Trace, op: str, inputs: Sequence[Value], rows: DimLike | None) -> Any:
        types = [_type(component, rows) for component in self._layout.components]
        node = self._node(trace, op, inputs, types=types)
        found = [wrap(value) for value in node.outputs]
        keys = self._layout.keys
        if keys is None:
            return found[0]
        return dict(zip(keys, found)) if self._layout.is_dict else tuple(found)

    def _inputs(self, element: Any, rows: DimLike | None) -> list[Value]:
        parts = self._layout._parts(element) if self._layout.keys is not None else [element]
        return [
            _input(component, part, rows is not None)
            for component, part in zip(self._layout.components, parts, strict=True)
        ]


def _refuse_timeout(timeout: float | None) -> None:
    if timeout is not None:
        raise UnsupportedError(
            "a `timeout` of a queue operation in traced code", location=here(),
            remedy="give one to the step: `session.run(fetches, timeout=seconds)`",
        )  # fmt: skip


def _count(n: Any) -> Value:
    return cast(read(lift(n)), I64)


def _type(component: Any, rows: DimLike | None) -> TensorType:
    if component.dtype not in DTYPES:
        raise UnsupportedError(f"{component.label} holds Python objects", location=here())
    if component.shape is None:
        raise ShapeError(
            f"a graph needs the number of axes of every component, and {component.label} has none",
            location=here(), remedy="give `shapes` when you make the queue",
        )  # fmt: skip
    dims = tuple(Symbol("d") if n is None else n for n in component.shape)
    return TensorType(component.dtype, dims if rows is None else (rows, *dims))


def _input(component: Any, part: Any, many: bool) -> Value:
    found = lift(part)
    if not np.can_cast(found.dtype, component.dtype, "same_kind"):
        raise ShapeError(
            f"{component.label} is {component}, got {found.type}", location=here(),
            remedy=f"convert it: `.astype({str(component.dtype)!r})`",
        )  # fmt: skip
    shape = found.type.shape[1:] if many else found.type.shape
    if component.shape is not None and (
        len(shape) != len(component.shape)
        or any(
            isinstance(n, int) and m is not None and n != m for n, m in zip(shape, component.shape)
        )
    ):
        raise ShapeError(f"{component.label} is {component}, got {found.type}", location=here())
    return cast(read(found), component.dtype)


class FIFOQueue(_InGraphs, waiting.FIFOQueue):
    __doc__ = waiting.FIFOQueue.__doc__


class RandomShuffleQueue(_InGraphs, waiting.RandomShuffleQueue):
    __doc__ = waiting.RandomShuffleQueue.__doc__


class PaddingFIFOQueue(_InGraphs, waiting.PaddingFIFOQueue):
    __doc__ = waiting.PaddingFIFOQueue.__doc__


class PriorityQueue(_InGraphs, waiting.PriorityQueue):
    __doc__ = waiting.PriorityQueue.__doc__
