"""`grad`, `value_and_grad`, `vjp`, `jvp`, `stop_gradient`: derivatives of functions.

All of them work while tracing: the function is traced into a graph, the graph is differentiated, and the result goes into
the trace under way. Outside a trace they are compiled functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dsl.autodiff.cotangents import combine
from dsl.autodiff.flow import carries
from dsl.autodiff.forward import push
from dsl.autodiff.reverse import Reverse
from dsl.compile import Compiled, jit
from dsl.errors import GradientError
from dsl.frontend.accesses import unnoted
from dsl.frontend.optional import unwrap
from dsl.frontend.scopes import current_scope, current_trace, here
from dsl.frontend.traced import Traced, fresh, lift, read, size_number
from dsl.frontend.trees import Structure, arranged, flatten, leaves_with_paths, unflatten
from dsl.ir.algebra import Algebra
from dsl.ir.derivative import Cotangent, Part
from dsl.ir.dims import DimLike
from dsl.ir.graph import Value
from dsl.ir.types import I64, TensorType, dtype_name, is_complex, is_inexact, size_of
from dsl.transforms.inner import (
    Inner,
    Leaf,
    compiled,
    is_number,
    kept,
    trace_inner,
    unwrapped,
    with_contents,
)

__all__ = ["grad", "jvp", "stop_gradient", "value_and_grad", "vjp"]

Argnums = int | tuple[int, ...]


def grad(
    fn: Any,
    argnums: Argnums = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    sparse: bool = False,
) -> Compiled[Any, Any]:
    """Return a function that computes the gradient of `fn`, whose result is a scalar.

    `argnums` says with respect to which positional arguments: one gives a tree like that argument, a tuple of them a tuple.
    With `has_aux`, `fn` returns a pair, of which the second part is returned beside the gradient as it is. The gradient of
    a real function of complex numbers `x + iy` is `df/dx - i df/dy`; a complex result must be a `holomorphic` function's.
    With `sparse`, the gradient of an array of which the function only takes rows (`x[indices]`) is a `dsl.optim.Rows`.

    >>> import numpy as np
    >>> grad(lambda x: (x**3).sum())(np.array([1.0, 2.0]))
    array([ 3., 12.])
    """

    def run(*args: Any, **kwargs: Any) -> Any:
        _, aux, found = _differentiate(fn, args, kwargs, argnums, has_aux, holomorphic, sparse)
        return (found, aux) if has_aux else found

    return compiled(fn, (grad, argnums, has_aux, holomorphic, sparse), run)


def value_and_grad(
    fn: Any,
    argnums: Argnums = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    sparse: bool = False,
) -> Compiled[Any, Any]:
    """Return a function that computes the result of `fn` and its gradient, as `grad` does.

    >>> value_and_grad(lambda x: x * x)(3.0)
    (9.0, 6.0)
    """

    def run(*args: Any, **kwargs: Any) -> Any:
        value, aux, found = _differentiate(fn, args, kwargs, argnums, has_aux, holomorphic, sparse)
        return ((value, aux) if has_aux else value), found

    return compiled(fn, (value_and_grad, argnums, has_aux, holomorphic, sparse), run)


def _differentiate(
    fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any], argnums: Argnums, has_aux: bool, holomorphic: bool,
    sparse: bool,
) -> tuple[Any, Any, Any]:  # fmt: skip
    check_argnums(fn, args, argnums)
    args = with_chosen_contents(args, argnums)
    inner = trace_inner(fn, args, kwargs, taken=value_of(has_aux))
    chosen = [chosen_leaves(args, k) for k in tuple_of(argnums)]
    active = [False] * len(inner.graph.params)
    for first, leaves, _, number in chosen:
        for k in range(first, first + len(leaves)):
            _check_leaf(inner.leaves[k], number, holomorphic)
            active[k] = True
    _check_result(inner, has_aux, holomorphic)
    wanted = [k == 0 for k in range(len(inner.graph.results))]
    scope = current_scope()
    with unnoted():
        reverse = Reverse(inner.graph, scope, inner.args, active, wanted)
        value = reverse.outputs[0]
        found = reverse.pull(scope, [scope.constant(1, value.dtype), *(None for _ in wanted[1:])])
    a = Algebra(scope)
    trees = _trees(a, chosen, inner, found, sparse)
    inner.put_back(reverse.outputs)
    result = inner.tree(reverse.outputs)
    value, aux = result if has_aux else (result, None)
    return value, aux, trees[0] if isinstance(argnums, int) else tuple(trees)


def value_of(has_aux: bool) -> Callable[[Any], Any]:
    """Return what takes the value for a result, or for the first of a pair, that may be None: a derivative needs it."""
    return _with_value_and_aux if has_aux else unwrap


def _with_value_and_aux(result: Any) -> Any:
    return (unwrap(result[0]), result[1]) if type(result) is tuple and len(result) == 2 else result


_OF_NUMBERS = "differentiate with respect to arrays and floats; pass the rest as another argument"


def tuple_of(argnums: Argnums) -> tuple[int, ...]:
    return (argnums,) if isinstance(argnums, int) else tuple(argnums)


def check_argnums(fn: Any, args: tuple[Any, ...], argnums: Any) -> None:
    numbers = argnums if isinstance(argnums, Sequence) else (argnums,)
    if not all(isinstance(number, int) for number in numbers):
        raise GradientError(
            f"argnums: expected the numbers of positional arguments, got {argnums!r}",
            location=here(),
            remedy="count arguments from 0: `argnums=0`, or `argnums=(0, 2)`",
        )
    for number in numbers:
        if not -len(args) <= number < len(args):
            raise GradientError(
                f"the gradient of `{_name(fn)}` is asked with respect to argument {number}, but it was called with "
                f"{len(args)} positional argument{'s' * (len(args) != 1)}",
                location=here(),
                remedy="count arguments from 0 and pass the differentiated ones by position",
            )
        if args[number] is None:
            raise GradientError(
                f"argument {number % len(args)} is None, which has no gradient",
                location=here(),
                remedy=_OF_NUMBERS,
            )


def with_chosen_contents(args: tuple[Any, ...], argnums: Argnums) -> tuple[Any, ...]:
    """Return arguments, those that are chosen with what variables hold in the place of variables."""
    chosen = {number % len(args) for number in tuple_of(argnums)}
    return tuple(with_contents(arg) if k in chosen else arg for k, arg in enumerate(args))


def _name(fn: Any) -> str:
    return getattr(unwrapped(fn), "__name__", repr(fn))


def chosen_leaves(args: tuple[Any, ...], number: int) -> tuple[int, list[Any], Structure, int]:
    """Return where the numeric leaves of an argument begin among all, those leaves, and its structure."""
    number %= len(args)
    before = sum(is_number(leaf) for leaf in flatten(args[:number])[0])
    leaves, structure = flatten(args[number])
    named = leaves_with_paths(args[number], f"argument {number}")
    bad = [f"{path} holds {leaf!r}" for path, leaf in named if not is_number(leaf)]
    if bad:
        raise GradientError(f"{bad[0]}, which has no gradient", location=here(), remedy=_OF_NUMBERS)
    return before, leaves, structure, number


def _check_leaf(leaf: Leaf, number: int, holomorphic: bool) -> None:
    dtype = leaf.value.dtype
    if not is_inexact(dtype):
        raise GradientError(
            f"the gradient is asked with respect to {leaf.path}, which is {dtype_name(dtype)}: integers have none",
            location=here(),
            remedy="pass floats: `x.astype(np.float64)`, or `3.0` for `3`; name other arguments with `argnums`",
        )
    if holomorphic and not is_complex(dtype):
        raise GradientError(
            f"holomorphic: {leaf.path} is {dtype_name(dtype)}, not complex", location=here()
        )


def _check_result(inner: Inner, has_aux: bool, holomorphic: bool) -> None:
    structure = inner.structure
    if has_aux and not (structure.type is tuple and len(structure.children) == 2):
        raise GradientError(
            "has_aux: the function must return a pair `(value, aux)`",
            location=here(),
            remedy="return both, or leave has_aux out",
        )
    first = structure.children[0] if has_aux else structure
    if first.type is not None or not inner.places or inner.places[0] is None:
        raise GradientError(
            f"the gradient is of functions that return one number, this one returns {_described(first)}",
            location=here(), remedy="return a scalar, use `has_aux=True` for further results, or `dsl.vjp`",
        )  # fmt: skip
    value = inner.graph.results[0]
    if value.shape:
        raise GradientError(
            f"the gradient is of functions that return one number, this one returns {value.type}",
            location=here(), remedy="sum it (`.sum()`), or use `dsl.jacrev` or `dsl.vjp`",
        )  # fmt: skip
    if not is_inexact(value.dtype):
        raise GradientError(
            f"the function returns {value.type}, which has no gradient",
            location=here(),
            remedy="return a float",
        )
    if is_complex(value.dtype) and not holomorphic:
        raise GradientError(
            f"the function returns {value.type}", location=here(),
            remedy="return a real number, such as `abs(z)**2`, or say `holomorphic=True` if the function is",
        )  # fmt: skip


def _described(structure: Structure) -> str:
    return (
        "an object"
        if structure.type is None
        else "None"
        if structure.type is type(None)
        else f"a {structure.type.__name__}"
    )


# -- products with a Jacobian -------------------------------------------------------------------------------------


def vjp(fn: Any, *primals: Any, has_aux: bool = False) -> tuple[Any, ...]:
    """Return `fn(*primals)` and a function from cotangents of the result to those of the arguments, a tuple.

    >>> y, pull = vjp(lambda x: x * x, 3.0)
    >>> y, pull(1.0)
    (9.0, (6.0,))
    """
    primals = with_contents(primals)
    if current_trace() is None:
        return _vjp_of_values(fn, primals, has_aux)
    inner = trace_inner(fn, primals, {}, taken=value_of(has_aux))
    chosen = [chosen_leaves(primals, k) for k in range(len(primals))]
    active = [carries(leaf.value) for leaf in inner.leaves] + [False] * len(inner.captured)
    main = _main_results(inner, has_aux)
    wanted = [k in main and carries(r) for k, r in enumerate(inner.graph.results)]
    scope = current_scope()
    with unnoted():
        reverse = Reverse(inner.graph, scope, inner.args, active, wanted)
    inner.put_back(reverse.outputs)
    result = inner.tree(reverse.outputs)

    @unnoted()
    def pull(cotangent: Any) -> tuple[Any, ...]:
        here_ = current_scope()
        again = reverse if here_ is scope else _again(inner, scope, active, wanted)
        gs = _as_cotangents(inner, has_aux, cotangent)
        found = again.pull(here_, [*gs, *(None for _ in range(len(wanted) - len(gs)))])
        a = Algebra(here_)
        return tuple(_trees(a, chosen, inner, found))

    if has_aux:
        return result[0], pull, result[1]
    return result, pull


def _again(inner: Inner, owner: Any, active: list[bool], wanted: list[bool]) -> Reverse:
    """Copy the graph into the current scope, which is inside the one that it was traced in."""
    scope = current_scope()
    args = [scope.local(value, owner) for value in inner.args]
    return Reverse(inner.graph, scope, args, active, wanted, effects=False)


def _main_results(inner: Inner, has_aux: bool) -> range:
    """Return which results of the graph belong to the function's value, leaving out what it returns beside that."""
    if not has_aux:
        return range(len([p for p in inner.places if p is not None]))
    first = inner.structure.children[0]
    count = _leaf_count(first)
    return range(len([p for p in inner.places[:count] if p is not None]))


def _leaf_count(structure: Structure) -> int:
    return 1 if structure.type is None else sum(map(_leaf_count, structure.children))


def _as_cotangents(inner: Inner, has_aux: bool, cotangent: Any) -> list[Value | None]:
    structure = inner.structure.children[0] if has_aux else inner.structure
    leaves, given = flatten(arranged(cotangent, structure))
    if given != structure:
        raise GradientError(
            f"the cotangent must be a tree like the result, {structure}, got {given}", location=here(),
            remedy="pass one array for each that the function returns",
        )  # fmt: skip
    found: list[Value | None] = []
    for leaf, place in zip(leaves, inner.places):
        if place is not None:
            found.append(_as_type(leaf, inner.graph.results[place], "cotangent"))
    return found


def _as_type(leaf: Any, like: Value, what: str) -> Value | None:
    """Return a leaf as a cotangent or tangent of a value; None for a value that has none."""
    if not carries(like):
        return None
    value = read(lift(leaf))
    type = like.tensor
    if len(value.shape) != len(type.shape) or any(
        isinstance(x, int) and isinstance(y, int) and x != y
        for x, y in zip(value.shape, type.shape)
    ):
        raise GradientError(
            f"the {what} must have the shape of its value, {type}, got {value.type}", location=here(),
            remedy="make it with `np.ones_like` or `np.zeros_like`",
        )  # fmt: skip
    if is_complex(value.dtype) and not is_complex(type.dtype):
        raise GradientError(f"the {what} of a real value is complex: {value.type}", location=here())
    return Algebra(current_scope()).as_dtype(value, type.dtype)


def _trees(
    a: Algebra, chosen: Sequence[Any], inner: Inner, found: Sequence[Any], sparse: bool = False
) -> list[Any]:
    """Return a tree of cotangents like each chosen argument."""
    trees = []
    for first, leaves, structure, _ in chosen:
        made = [
            _rows(a, parts) if sparse and _are_rows(parts) else _whole(a, parts, leaf)
            for parts, leaf in zip(found[first : first + len(leaves)], inner.leaves[first:])
        ]
        trees.append(unflatten(structure, made))
    return trees


def _whole(a: Algebra, parts: Sequence[Cotangent], leaf: Leaf) -> Traced:
    return fresh(combine(a, parts) if parts else a.zeros(leaf.value.tensor), leaf.kind)


def _are_rows(parts: Sequence[Cotangent]) -> bool:
    """Tell whether cotangents are of rows alone, taken by one index each."""
    return bool(parts) and all(
        isinstance(part, Part) and part.place == "gather" and part.attrs["axes"] == (0,)
        for part in parts
    )


def _rows(a: Algebra, parts: Sequence[Any]) -> Any:
    from dsl.optim.rows import Rows

    indices, values = [], []
    for part in parts:
        (index,) = part.inputs
        rest = part.type.shape[1:]
        count = size_of(index.shape)
        indices.append(a.reshaped(a.as_dtype(index, I64), (count,)))
        values.append(a.reshaped(part.value, (count, *rest)))
    joined = [xs[0] if len(xs) == 1 else a.concatenate(*xs, axis=0) for xs in (indices, values)]
    return Rows(fresh(joined[0]), fresh(joined[1]), tuple(map(_size_number, parts[0].type.shape)))


def _size_number(dim: DimLike) -> Any:
    return dim if isinstance(dim, int) else size_number(dim)


def _vjp_of_values(fn: Any, primals: tuple[Any, ...], has_aux: bool) -> tuple[Any, ...]:
    def run(primals: Any, cotangent: Any) -> Any:
        return vjp(fn, *primals, has_aux=has_aux)[1](cotangent)

    saved = _copied(primals)
    forward: Compiled[Any, Any] = kept(fn, "value", lambda: jit(fn))
    result = forward(*_copied(primals))
    backward = compiled_of(fn, ("vjp", has_aux), run)

    def pull(cotangent: Any) -> Any:
        return backward(saved, cotangent)

    return (result[0], pull, result[1]) if has_aux else (result, pull)


def compiled_of(fn: Any, key: Any, run: Callable[..., Any]) -> Compiled[Any, Any]:
    """Compile a function that takes other arguments than `fn` does."""
    run.__name__ = _name(fn)
    return kept(fn, key, lambda: Compiled(_Own(run, fn)))  # type: ignore[no-any-return]


class _Own:
    """A function of this library, as something to compile with its own signature."""

    dsl_traced = True

    def __init__(self, run: Callable[..., Any], fn: Any) -> None:
        self.run, self.fn, self.__name__, self.__wrapped__ = run, fn, run.__name__, run

    def dsl_wraps(self) -> tuple[Any, ...]:
        """What is outside of a trace if this is."""
        return (self.fn,)

    def dsl_inline(self, args: Any, kwargs: Any) -> Any:
        return self.run(*args, **kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(*args, **kwargs)


def _copied(tree: Any) -> Any:
    leaves, structure = flatten(tree)
    return unflatten(
        structure, [leaf.copy() if isinstance(leaf, np.ndarray) else leaf for leaf in leaves]
    )


def jvp(
    fn: Any, primals: Sequence[Any], tangents: Sequence[Any], has_aux: bool = False
) -> tuple[Any, ...]:
    """Return `fn(*primals)` and how it changes when the arguments change by `tangents`.

    >>> jvp(lambda x: x * x, (3.0,), (1.0,))
    (9.0, 6.0)
    """
    _check_rows(primals, tangents)
    primals, tangents = with_contents((tuple(primals), tuple(tangents)))
    if current_trace() is None:

        def run(primals: Any, tangents: Any) -> Any:
            return jvp(fn, primals, tangents, has_aux)

        return compiled_of(fn, ("jvp", has_aux), run)(primals, tangents)  # type: ignore[no-any-return]
    inner = trace_inner(fn, tuple(primals), {}, taken=value_of(has_aux))
    scope = current_scope()
    ts = _as_tangents(inner, tuple(primals), tuple(tangents))
    main = _main_results(inner, has_aux)
    wanted = [k in main for k in range(len(inner.graph.results))]
    given = [*ts, *(None for _ in inner.captured)]
    with unnoted():
        values, moved = push(inner.graph, scope, inner.args, given, wanted)
    inner.put_back(values)
    result = inner.tree(values)
    a = Algebra(scope)
    changes = [
        t if t is not None else a.zeros(TensorType(v.dtype, v.shape)) for t, v in zip(moved, values)
    ]
    tangent = inner.tree(changes)
    if has_aux:
        return result[0], tangent[0], result[1]
    return result, tangent


def _check_rows(primals: Any, tangents: Any) -> None:
    for what, given in (("arguments", primals), ("tangents", tangents)):
        if not isinstance(given, (tuple, list)):
            raise GradientError(
                f"jvp takes the {what} in a tuple, got a {type(given).__name__}",
                location=here(),
                remedy="write `dsl.jvp(f, (x,), (t,))` for a function of one argument",
            )


def _as_tangents(
    inner: Inner, primals: tuple[Any, ...], tangents: tuple[Any, ...]
) -> list[Value | None]:
    own, expected = flatten(primals)
    leaves, structure = flatten(arranged(tangents, expected))
    if structure != expected:
        raise GradientError(
            f"the tangents must be a tree like the arguments, {expected}, got {structure}", location=here(),
            remedy="pass one tangent for each argument, in a tuple",
        )  # fmt: skip
    numbers = [t for t, leaf in zip(leaves, own) if is_number(leaf)]
    return [
        _as_type(t, leaf.value, "tangent") for t, leaf in zip(numbers, inner.leaves, strict=True)
    ]


def stop_gradient(x: Any) -> Any:
    """Return `x`, a tree of arrays, as something that derivatives do not flow through.

    >>> grad(lambda x: x * stop_gradient(x))(3.0)
    3.0
    """
    if current_trace() is None:
        return x
    leaves, structure = flatten(with_contents(x))
    scope = current_scope()
    made = [
        fresh(scope.emit("stop_gradient", read(leaf)), leaf.kind)
        if isinstance(leaf, Traced)
        else leaf
        for leaf in leaves
    ]
    return unflatten(structure, made)
