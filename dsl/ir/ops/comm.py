"""Communication between the ranks of one program: collectives, and messages of two ranks.

All ranks run the same program on data of their own. An op here happens on all of them, in program order with the others:
they share one resource. `ranks` is how many there are, which gives the sizes of stacks; `how` is `sum`, `mean`, `max`, `min`
or `prod`. Shapes and dtypes are the same on all ranks; ranks that do different things get a `MismatchError`.

Reductions keep the dtype. Floats of 16 bits are reduced in 32. NaNs go through `max` and `min`. Bools have `max` and `min`
alone, which are `any` and `all`; complex numbers `sum`, `mean` and `prod`. Where only the root has a result, others have zeros.

`send_to` waits until its array may be written again, which may be when the other rank next communicates. `exchange` sends and
receives at once. A partner of -1 is nobody: nothing goes there, zeros come from there.

`all_reduce_start` begins a reduction of several arrays, which goes on while the program computes; its first input is the
number of the one begun before, or any number, so that they begin in order. `all_reduce_wait` gives the results.

In derivatives the loss is the sum of all ranks' losses. The derivative of a collective is one itself, and happens on every
rank, whether this rank needs it or not: another may.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dsl.errors import MismatchError, ShapeError
from dsl.ir.communicator import NOBODY, REDUCTIONS, Communicator, communicator
from dsl.ir.ops.rules import ANY, I64S, Attrs, Domain, Inputs, check_dtype, differ, operands, refuse
from dsl.ir.registry import Trait, op
from dsl.ir.types import DTYPES, I64, TensorType, is_complex, is_inexact, scalar

__all__ = ["RESOURCE"]

RESOURCE = "communicator"
_TRAITS = (Trait.EFFECT, Trait.CHECKED, Trait.COLLECTIVE)


def _reducible(how: str) -> Domain:
    """Return the dtypes that can be reduced so."""
    tests: dict[str, Callable[[np.dtype], bool]] = {
        "mean": is_inexact,
        "max": lambda dtype: not is_complex(dtype),
        "min": lambda dtype: not is_complex(dtype),
    }
    words = {"mean": "of floating or complex dtype", "max": "of real dtype", "min": "of real dtype"}
    holds = tests.get(how, lambda dtype: dtype.kind != "b")
    return Domain(words.get(how, "of numeric dtype"), frozenset(filter(holds, DTYPES)))


_DOMAINS = {how: _reducible(how) for how in REDUCTIONS}


# -- types ---------------------------------------------------------------------------------------------------------


def _operand(name: str, inputs: Inputs, attrs: Attrs) -> TensorType:
    """Check the operand of a collective and its attributes."""
    _check_ranks(name, attrs)
    how = attrs.get("how")
    if how is not None and how not in _DOMAINS:
        refuse(name, "how", " or ".join(REDUCTIONS), repr(how))
    domain = ANY if how is None else _DOMAINS[how]
    return operands(name, inputs, x=domain)[0]


def _check_ranks(name: str, attrs: Attrs) -> None:
    ranks = attrs["ranks"]
    if not isinstance(ranks, int) or ranks < 1:
        refuse(name, "ranks", "a number of ranks", repr(ranks))
    for partner, least in (("root", 0), ("dest", NOBODY), ("source", NOBODY)):
        if partner in attrs and not least <= attrs[partner] < ranks:
            refuse(name, partner, f"a rank from 0 to {ranks - 1}", repr(attrs[partner]))


def _same(name: str) -> Callable[[Inputs, Attrs], TensorType]:
    return lambda inputs, attrs: _operand(name, inputs, attrs)


def _stacked(name: str) -> Callable[[Inputs, Attrs], TensorType]:
    def rule(inputs: Inputs, attrs: Attrs) -> TensorType:
        x = _operand(name, inputs, attrs)
        return x.with_shape((attrs["ranks"], *x.shape))

    return rule


def _rows(name: str, inputs: Inputs, attrs: Attrs) -> TensorType:
    x = _operand(name, inputs, attrs)
    if not x.rank:
        refuse(name, "x", "a stack with a row for each rank", x)
    if differ(x.shape[0], attrs["ranks"]):
        raise ShapeError(f"{name}: x must have a row for each of {attrs['ranks']} ranks, got {x}")
    return x


def _row(name: str) -> Callable[[Inputs, Attrs], TensorType]:
    def rule(inputs: Inputs, attrs: Attrs) -> TensorType:
        x = _rows(name, inputs, attrs)
        return x.with_shape(x.shape[1:])

    return rule


def _nothing(name: str) -> Callable[[Inputs, Attrs], tuple[()]]:
    def rule(inputs: Inputs, attrs: Attrs) -> tuple[()]:
        _operand(name, inputs, attrs)
        return ()

    return rule


def _barrier_type(inputs: Inputs, attrs: Attrs) -> tuple[()]:
    operands("barrier", inputs)
    _check_ranks("barrier", attrs)
    return ()


def _recv_type(inputs: Inputs, attrs: Attrs) -> TensorType:
    operands("recv_from", inputs)
    _check_ranks("recv_from", attrs)
    return TensorType(check_dtype("recv_from", attrs["dtype"]), tuple(attrs["shape"]))


def _start_type(inputs: Inputs, attrs: Attrs) -> TensorType:
    name = "all_reduce_start"
    operands(name, inputs[:1], after=I64S)
    for x in inputs[1:]:
        _operand(name, (x,), attrs)
        if x.dtype != inputs[1].dtype:
            refuse(name, "x", "of one dtype", x)
    return scalar(I64)


def _wait_type(inputs: Inputs, attrs: Attrs) -> tuple[TensorType, ...]:
    operands("all_reduce_wait", inputs, number=I64S)
    dtype = check_dtype("all_reduce_wait", attrs["dtype"])
    return tuple(TensorType(dtype, shape) for shape in attrs["shapes"])


# -- meanings ------------------------------------------------------------------------------------------------------


def _world(ranks: int) -> Communicator:
    found = communicator()
    if found.size != ranks:
        raise MismatchError(
            f"this program is for {ranks} ranks, and there {'is' if found.size == 1 else 'are'} {found.size}",
            remedy=f"run it with `mpirun -n {ranks}`, and `import dsl.parallel` before it runs",
        )
    return found


def _method(name: str) -> Callable[..., Any]:
    """The meaning of an op is the communicator's method of that name."""

    def run(*inputs: np.ndarray, ranks: int, **attrs: Any) -> Any:
        found = getattr(_world(ranks), name)(*inputs, **attrs)
        return () if found is None else found

    return run


def _recv(*, ranks: int, dtype: np.dtype, shape: tuple[int, ...], source: int, tag: int) -> Any:
    like = np.broadcast_to(np.zeros((), dtype), shape)
    return _world(ranks).recv_from(like, source, tag)


def _start(after: np.ndarray, *xs: np.ndarray, ranks: int, how: str) -> np.ndarray:
    return np.array(_world(ranks).start(xs, how), np.int64)


def _wait(number: np.ndarray, *, ranks: int, dtype: np.dtype, shapes: Any) -> tuple[Any, ...]:
    return tuple(_world(ranks).wait(int(number)))


def _comm(
    name: str, signature: str, doc: str, type: Any, numpy: Callable[..., Any] | None = None
) -> None:
    op(name, signature, doc=doc, type=type, numpy=numpy or _method(name), traits=_TRAITS,
       resource=RESOURCE)  # fmt: skip


_comm("all_reduce", "x -> y", "The reduction of all ranks' x.", _same("all_reduce"))
_comm("reduce_to", "x -> y", "The reduction of all ranks' x on the root.", _same("reduce_to"))
_comm("broadcast_from", "x -> y", "The root's x on all ranks.", _same("broadcast_from"))
_comm("gather_to", "x -> y", "All ranks' x in a stack on the root.", _stacked("gather_to"))
_comm("all_gather", "x -> y", "All ranks' x in a stack, on all of them.", _stacked("all_gather"))
_comm("scatter_from", "x -> y", "Each rank's row of the root's x.", _row("scatter_from"))
_comm(
    "reduce_scatter",
    "x -> y",
    "Each rank's row of the reduction of all ranks' x.",
    _row("reduce_scatter"),
)
_comm(
    "all_to_all",
    "x -> y",
    "Row s is rank s's row for this rank.",
    lambda inputs, attrs: _rows("all_to_all", inputs, attrs),
)
_comm("barrier", "->", "All ranks are there before any goes on.", _barrier_type)
_comm("send_to", "x ->", "Send x to the rank `dest`.", _nothing("send_to"))
_comm("recv_from", "-> x", "The array that the rank `source` sends here.", _recv_type, _recv)
_comm(
    "exchange",
    "x -> y",
    "Send x to `dest` and return what `source` sends, at once.",
    _same("exchange"),
)
_comm(
    "all_reduce_start",
    "after, *xs -> number",
    "Begin to reduce all ranks' xs, and go on.",
    _start_type,
    _start,
)
_comm(
    "all_reduce_wait",
    "number -> *ys",
    "The reductions that were begun, when they are there.",
    _wait_type,
    _wait,
)
