"""Derivatives of Fourier transforms, which are linear; they are transposed, not conjugated."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dsl.ir.algebra import Algebra
from dsl.ir.derivative import derive, linear
from dsl.ir.graph import Node, Value

A = Algebra


def _fft(a: A, node: Node, gs: Sequence[Value]) -> list[Value]:
    """The matrix of the transform is symmetric."""
    return [a.fft(gs[0], axis=node.attrs["axis"], n=node.attrs["n"], inverse=node.attrs["inverse"])]


def _rfft(a: A, node: Node, gs: Sequence[Value]) -> list[Value]:
    """The half that is returned is filled up with zeros; the real part of its transform is left."""
    (x,), (g,), axis, n = node.inputs, gs, node.attrs["axis"], node.attrs["n"]
    missing = n - g.shape[axis]
    high = tuple(missing if k == axis else 0 for k in range(len(g.shape)))
    filled = a.pad(g, a.builder.constant(0, g.dtype), low=(0,) * len(high), high=high)
    return [a.reshaped(a.real(a.fft(filled, axis=axis, n=n, inverse=False)), x.shape)]


def _irfft(a: A, node: Node, gs: Sequence[Value]) -> list[Value]:
    """y = sum of w[k] Re(x[k] e**(+…)), the inner terms twice: the cotangent is w times the forward half, conjugated twice."""
    (x,), (g,), axis, n = node.inputs, gs, node.attrs["axis"], node.attrs["n"]
    half = a.conjugate(a.rfft(g, axis=axis, n=n))
    size = x.shape[axis]
    count = a.iota(size=size, dtype=np.dtype(np.int64))
    even = a.equal(a.remainder(a.builder.size(n), 2), 0)
    last = a.logical_and(even, a.equal(count, a.subtract(a.builder.size(size), 1)))
    single = a.logical_or(a.equal(count, 0), last)
    one, two = a.builder.constant(1, x.dtype), a.builder.constant(2, x.dtype)
    weight = a.reshaped(
        a.where(single, one, two), [size if k == axis else 1 for k in range(len(x.shape))]
    )
    return [a.multiply(half, weight)]


derive("fft", linear(_fft, 0))
derive("rfft", linear(_rfft, 0))
derive("irfft", linear(_irfft, 0))
