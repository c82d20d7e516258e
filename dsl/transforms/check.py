"""`check_grads`: derivatives against finite differences, both modes, any order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dsl.compile import jit
from dsl.errors import GradientError
from dsl.frontend.trees import flatten, leaves_with_paths, unflatten
from dsl.transforms.gradients import jvp, vjp
from dsl.transforms.inner import with_contents

__all__ = ["check_grads"]

Arrays = list[np.ndarray]


def check_grads(
    fn: Callable[..., Any], args: Sequence[Any], order: int = 1, modes: Sequence[str] = ("fwd", "rev"),
    eps: float = 1e-4, atol: float = 1e-5, rtol: float = 1e-4, seed: int = 0,
) -> None:  # fmt: skip
    """Raise `GradientError` unless the derivatives of `fn` at `args` agree with central differences.

    `args` are arrays of floats or complex numbers, and trees of them; other arguments belong into `fn`. Along a random
    direction, forward mode is compared with differences of the function, and reverse mode with forward mode. For `order`
    n the first n derivatives are checked so, each by differentiating the one before. Give float64: differences of
    float32 are too coarse for the tolerances.

    >>> check_grads(lambda x: np.sin(x) * x, (np.array([0.5, 2.0]),), order=2)
    """
    _check(
        jit(fn),
        with_contents(tuple(args)),
        order,
        modes,
        (eps, atol, rtol),
        np.random.default_rng(seed),
        "fn",
    )


def _check(
    fn: Any, args: tuple[Any, ...], order: int, modes: Sequence[str], limits: tuple[float, float, float],
    rng: np.random.Generator, name: str,
) -> None:  # fmt: skip
    eps, atol, rtol = limits
    tangent = _direction(rng, args)
    out, moved = jvp(fn, args, tangent)
    slope = _differences(fn, args, tangent, eps)
    if "fwd" in modes:
        _compare(f"forward mode of {name}", moved, slope, atol, rtol)
    if "rev" in modes:
        _check_reverse(fn, args, tangent, out, slope, rng, (atol, rtol), name)
    if order < 2:
        return
    if "fwd" in modes:
        _check(
            jit(lambda *x: jvp(fn, x, tangent)[1]),
            args,
            order - 1,
            modes,
            limits,
            rng,
            f"jvp of {name}",
        )
    if "rev" in modes:
        cotangent = _direction(rng, (out,))[0]
        _check(
            jit(lambda *x: vjp(fn, *x)[1](cotangent)),
            args,
            order - 1,
            modes,
            limits,
            rng,
            f"vjp of {name}",
        )


def _check_reverse(
    fn: Any, args: tuple[Any, ...], tangent: Any, out: Any, slope: Any, rng: np.random.Generator,
    limits: tuple[float, float], name: str,
) -> None:  # fmt: skip
    """A cotangent times the slope is the pulled-back cotangent times the tangent; without conjugation, real parts."""
    cotangent = _direction(rng, (out,))[0]
    pulled = vjp(fn, *args)[1](cotangent)
    _compare(
        f"reverse mode of {name}", _product(pulled, tangent), _product(cotangent, slope), *limits
    )


def _arrays(tree: Any) -> tuple[Arrays, Any]:
    leaves, structure = flatten(tree)
    return [np.asarray(leaf) for leaf in leaves], structure


def _direction(rng: np.random.Generator, tree: Any) -> Any:
    """Return a random tree like another; of what is not floats, zeros."""
    leaves, structure = flatten(tree)
    return unflatten(structure, [_random(rng, leaf) for leaf in leaves])


def _random(rng: np.random.Generator, leaf: Any) -> Any:
    like = np.asarray(leaf)
    if like.dtype.kind not in "fcV":
        return leaf
    made = rng.standard_normal(like.shape)
    if like.dtype.kind == "c":
        made = made + 1j * rng.standard_normal(like.shape)
    cast = np.asarray(made).astype(like.dtype)
    return (
        cast
        if isinstance(leaf, np.ndarray)
        else cast[()].item()
        if isinstance(leaf, (float, complex))
        else cast[()]
    )


def _moved(args: tuple[Any, ...], tangent: Any, step: float) -> Any:
    leaves, structure = flatten(args)
    moves, _ = flatten(tangent)
    made = [
        x + step * t if np.asarray(x).dtype.kind in "fcV" else x
        for x, t in zip(leaves, moves, strict=True)
    ]
    cast = [
        np.asarray(m).astype(np.asarray(x).dtype) if isinstance(x, np.ndarray) else m
        for m, x in zip(made, leaves)
    ]
    return unflatten(structure, cast)


def _differences(fn: Any, args: tuple[Any, ...], tangent: Any, eps: float) -> Any:
    ahead, structure = _arrays(fn(*_moved(args, tangent, eps)))
    behind, _ = _arrays(fn(*_moved(args, tangent, -eps)))
    made = [
        (a - b) / (2 * eps) if a.dtype.kind in "fcV" else np.zeros(a.shape)
        for a, b in zip(ahead, behind, strict=True)
    ]
    return unflatten(structure, made)


def _product(one: Any, other: Any) -> float:
    pairs = zip(_arrays(one)[0], _arrays(other)[0], strict=True)
    return float(
        sum(
            np.real(a * b).sum()
            for a, b in pairs
            if a.dtype.kind in "fcV" and b.dtype.kind in "fcV"
        )
    )


def _compare(what: str, found: Any, expected: Any, atol: float, rtol: float) -> None:
    for (path, x), (_, y) in zip(
        leaves_with_paths(found), leaves_with_paths(expected), strict=True
    ):
        a, b = np.asarray(x), np.asarray(y)
        if b.dtype.kind not in "fcV" or np.allclose(a, b, atol=atol, rtol=rtol, equal_nan=True):
            continue
        raise GradientError(
            f"{what} disagrees with finite differences{' at ' + path if path else ''}: {a} where {b} is expected "
            f"(largest error {np.max(np.abs(a - b)):.3g})",
            remedy="if the function has a kink or a jump near here, check it elsewhere; else its rule is wrong",
        )
