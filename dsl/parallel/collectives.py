"""Collectives and messages between the ranks of `mpirun`, on arrays at once and in traced functions as ops.

All ranks call the same functions in the same order, on arrays of the same dtype and shape; `send` and `recv` pair up. Every
function takes trees of arrays too, leaf by leaf. In derivatives the loss is the sum of all ranks' losses. In a world of one
rank everything comes back as it is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from dsl.errors import ConfigError, DeviceError, DslError, UnsupportedError
from dsl.executor.shared_memory import native_code
from dsl.frontend.scopes import current_scope, current_trace, here
from dsl.frontend.signature import is_on_device
from dsl.frontend.traced import Traced, as_dim, fresh, lift, read, supported_dtype, wrap
from dsl.frontend.trees import flatten, unflatten
from dsl.ir import shared_memory
from dsl.ir.communicator import (
    NOBODY,
    REDUCTIONS,
    Alone,
    Communicator,
    at_location,
    communicator,
    provide,
)
from dsl.ir.devices import DeviceName
from dsl.ir.registry import get_op
from dsl.ir.remote import Remote
from dsl.ir.types import TensorType, is_inexact
from dsl.mpi.world import world

__all__ = [
    "allgather", "allreduce", "alltoall", "barrier", "broadcast", "gather", "rank", "recv", "reduce", "reduce_scatter", "scatter",
    "send", "sendrecv", "size",
]  # fmt: skip


def _made() -> Communicator:
    if world().size == 1:
        return Alone()
    from dsl.mpi.collectives import ranks

    return ranks()


provide(_made)
shared_memory.provide(native_code)


def rank() -> int:
    """Return the number of this process, from 0."""
    return communicator().rank


def size() -> int:
    """Return how many processes run the program."""
    return communicator().size


# -- collectives ------------------------------------------------------------------------------------------------------


def allreduce(x: Any, op: str = "sum") -> Any:
    """Return the `sum`, `mean`, `max`, `min` or `prod` of all ranks' `x`, on all of them.

    >>> import numpy as np
    >>> allreduce(np.array([1.0, 2.0]))  # of one rank
    array([1., 2.])
    """
    if type(x) is np.ndarray and current_trace() is None:
        found = communicator().all_reduce_now(x, op, here)
        if found is not NotImplemented:
            return found
    return _each(x, "all_reduce", how=op)


def reduce(x: Any, op: str = "sum", root: int = 0) -> Any:
    """Return the reduction on rank `root`, and zeros elsewhere."""
    return _each(x, "reduce_to", how=op, root=root)


def broadcast(x: Any, root: int = 0) -> Any:
    """Return the `x` of rank `root`; that of the others says dtype and shape.

    A result of a placed function that is on the root, and elsewhere stands for what is there, will do.
    """
    known = x if type(x) is np.ndarray else _with_standins(x, root)
    return _each(known, "broadcast_from", root=root)


def gather(x: Any, root: int = 0) -> Any:
    """Return all ranks' `x` along a new first axis on rank `root`, and zeros elsewhere."""
    return _each(x, "gather_to", root=root)


def allgather(x: Any) -> Any:
    """Return all ranks' `x` along a new first axis, on all of them."""
    return _each(x, "all_gather")


def scatter(x: Any, root: int = 0) -> Any:
    """Return row `rank()` of the `x` of rank `root`, which has a row for each rank; others' `x` says dtype and shape."""
    return _each(x, "scatter_from", root=root)


def reduce_scatter(x: Any, op: str = "sum") -> Any:
    """Return row `rank()` of the reduction of all ranks' `x`, which have a row for each rank."""
    return _each(x, "reduce_scatter", how=op)


def alltoall(x: Any) -> Any:
    """Send row `s` of `x` to rank `s`, and return what all ranks sent here, row by row."""
    return _each(x, "all_to_all")


def barrier() -> Any:
    """Wait until all ranks are here. In a `dsl.Graph`, return the operation that does."""
    return _apply("barrier", None, {})


# -- messages ---------------------------------------------------------------------------------------------------------


def send(x: Any, dest: int, tag: int = 0) -> Any:
    """Send `x` to rank `dest`, which receives it with the same tag; return when it may be written again.

    That may be when `dest` next communicates. In a `dsl.Graph`, return the operation that sends.
    """
    _check_partner("send", "dest", dest)
    leaves, _ = flatten(x)
    found = [_apply("send_to", leaf, {"dest": dest, "tag": tag}) for leaf in leaves]
    return found[0] if len(found) == 1 else None


def recv(like: Any, source: int, tag: int = 0) -> Any:
    """Return what rank `source` sends with the same tag: an array of the dtype and shape of `like`."""
    _check_partner("recv", "source", source)
    leaves, structure = flatten(like)
    return unflatten(structure, [_received(leaf, source, tag) for leaf in leaves])


def sendrecv(x: Any, dest: int | None, source: int | None, tag: int = 0) -> Any:
    """Send `x` to rank `dest` and return what rank `source` sends, at the same time.

    Either may be None, at the ends of a row of ranks: nothing is sent, or zeros are returned.
    """
    partners = {"dest": dest, "source": source}
    known = {name: NOBODY if r is None else r for name, r in partners.items()}
    return _each(x, "exchange", tag=tag, **known)


def _check_partner(what: str, name: str, partner: int) -> None:
    if partner == rank():
        raise UnsupportedError(
            f"{what}: {name}={partner} is this rank itself", location=here(),
            remedy="use the value as it is, or `sendrecv`, which may go to the rank itself",
        )  # fmt: skip


def _received(like: Any, source: int, tag: int) -> Any:
    like = _standin(like, source) if isinstance(like, Remote) else like
    on_gpu = is_on_device(like)
    if isinstance(like, Traced):
        dtype, shape = like.dtype, tuple(map(as_dim, like.shape))
    elif on_gpu:
        dtype, shape = supported_dtype(np.dtype(like.dtype)), tuple(like.shape)
    else:
        dtype, shape = supported_dtype(np.asarray(like).dtype), np.shape(like)
    attrs = {"source": source, "tag": tag, "dtype": dtype, "shape": shape}
    found = _apply("recv_from", None, attrs)
    if not on_gpu or current_trace() is not None:
        return found
    from dsl.parallel.gpu_arrays import to_gpu_of

    return to_gpu_of(like, found)


def _with_standins(tree: Any, rank: int) -> Any:
    """Return a tree with an array of the right dtype and shape for each result that is on another rank, the one named."""
    leaves, structure = flatten(tree)
    return unflatten(structure, [_standin(x, rank) if isinstance(x, Remote) else x for x in leaves])


def _standin(result: Remote, rank: int) -> Any:
    found, there = result.type, DeviceName.parse(result.device).rank
    if there != rank or not isinstance(found, TensorType):
        return result.refuse()
    if not found.is_static():
        raise DeviceError(
            f"this result ({found}) is on {result.device}, and so is its size",
            location=here(),
            remedy="have all ranks broadcast its shape first, and here pass an array of that shape in its place; or compute it "
            "under `dsl.device` of this rank",
        )
    return np.zeros(found.shape, found.dtype)


# -- how --------------------------------------------------------------------------------------------------------------


def _each(tree: Any, op: str, **attrs: Any) -> Any:
    if type(tree) is np.ndarray and current_trace() is None:
        return _run(op, tree, attrs)
    leaves, structure = flatten(tree)
    return unflatten(structure, [_apply(op, leaf, attrs) for leaf in leaves])


def _apply(op: str, x: Any, attrs: dict[str, Any]) -> Any:
    """Apply an op to a leaf, or to nothing."""
    if current_trace() is None:
        if not is_on_device(x):
            return _run(op, x, attrs)
        from dsl.parallel.gpu_arrays import apply_on_gpu

        return apply_on_gpu(op, x, attrs, _run)
    attrs = {"ranks": size(), **attrs}
    _check(op, attrs)
    operands = [] if x is None else [_converted(lift(x), attrs.get("how"))]
    if attrs["ranks"] == 1 and op in _ALONE:
        return _ALONE[op](*operands)
    node = current_scope().node(op, [read(operand) for operand in operands], attrs)
    if node.outputs:
        return wrap(node.output)
    return _operation(op, node)


def _check(op: str, attrs: dict[str, Any]) -> None:
    for name in ("root", "dest", "source"):
        partner, least = attrs.get(name, 0), 0 if name == "root" else NOBODY
        if not isinstance(partner, (int, np.integer)) or not least <= partner < attrs["ranks"]:
            raise ConfigError(
                f"{op}: {name}={partner!r}, and there are ranks 0 to {attrs['ranks'] - 1}",
                location=here(), remedy="name a rank below `dsl.parallel.size()`",
            )  # fmt: skip
    if attrs.get("how", "sum") not in REDUCTIONS:
        raise ConfigError(
            f"{op}: op={attrs['how']!r} is none of {', '.join(REDUCTIONS)}", location=here()
        )


def _run(op: str, x: Any, attrs: dict[str, Any]) -> Any:
    """Apply an op to an array at once."""
    where, everybody = here(), communicator()
    given = None if x is None else _converted(np.asarray(x), attrs.get("how"))
    types = () if given is None else ((given.dtype, given.shape),)
    try:
        meaning = _meaning(everybody, op, types, tuple(attrs.items()))
        with at_location(where):
            found = meaning() if given is None else meaning(given)
    except DslError as error:
        error.location = error.location or where
        raise
    except TypeError:
        _check(op, {"ranks": everybody.size, **attrs})  # what cannot be hashed is to be refused
        raise
    return found if found is None or np.ndim(found) else np.asarray(found)[()]


@functools.lru_cache(4096)
def _meaning(
    everybody: Communicator, op: str, operands: tuple[tuple[np.dtype, Any], ...],
    items: tuple[tuple[str, Any], ...],
) -> Callable[..., Any]:  # fmt: skip
    """Check an op on arrays of some dtypes and shapes, and return what runs it."""
    attrs = {"ranks": everybody.size, **dict(items)}
    _check(op, attrs)
    record = get_op(op)
    record.type(tuple(TensorType(supported_dtype(d), shape) for d, shape in operands), attrs)
    if op == "recv_from":
        return functools.partial(record.numpy, **attrs)
    return functools.partial(getattr(everybody, op), **dict(items))


def _converted(x: Any, how: str | None) -> Any:
    """Bools are counted, and means of integers are floats, as NumPy's are."""
    if how in ("sum", "prod") and x.dtype.kind == "b":
        return x.astype(np.int64)
    if how == "mean" and not is_inexact(x.dtype):
        return x.astype(np.float64)
    return x


def _operation(op: str, node: Any) -> Any:
    """In a graph, return what a session runs to have a node happen that has no result."""
    trace = current_trace()
    if trace is None or not trace.is_graph or current_scope() is not trace.root:
        return None
    from dsl.session.graph import Operation, group, the_graph

    return group(Operation(the_graph(op)[0], (node,), op), name=op)


def _same(x: Traced) -> Traced:
    return fresh(current_scope().emit("identity", read(x)), x.kind)


def _stack(x: Traced) -> Traced:
    value = read(x)
    return wrap(current_scope().emit("reshape", value, shape=(1, *value.shape)))


def _first(x: Traced) -> Traced:
    return _same(lift(x[0]))


_ALONE: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("all_reduce", "reduce_to", "broadcast_from", "all_to_all"), _same),
    **dict.fromkeys(("gather_to", "all_gather"), _stack),
    **dict.fromkeys(("scatter_from", "reduce_scatter"), _first),
}
"""What a rank alone does in a traced function."""
