"""Counter-based random bits with explicit keys: Threefry-2x32 with 20 rounds.

The cipher is that of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC'11): it maps a
key (k0, k1) and a counter (c0, c1), all uint32, to two uint32 words (w0, w1). Sums wrap.

A key is u32[2]; a stack of keys u32[..., 2] gives a stack of results. Element `i` of a result, counted in C order
within one key, is made from the counter `(i >> 32, i & 0xffffffff)` and nothing else:

    u64      w0 << 32 | w1
    u32      w0 ^ w1
    u16, u8  the low bits of the u32

So an element depends on (key, position) alone: a longer result begins with the shorter one, any part can be made
anywhere, and the same bits come from every executor, thread count and rank. This is also the layout of JAX's
`jax_threefry_partitionable`, bit for bit.

`fold_in` returns (w0, w1) for the counter `(d >> 32, d & 0xffffffff)`, where `d` is the data modulo 2**64: its value
counts, not its dtype. Data with axes gives a key per element; `fold_in(key, arange(n))` is JAX's `split(key, n)`. The
new keys and the bits of one key share counters, so a key is used once: to draw from, or to derive keys from.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np

from dsl.errors import ShapeError
from dsl.ir.ops.rules import INTEGERS, Attrs, Inputs, check_dtype, exactly, operands, refuse
from dsl.ir.registry import Sample, Trait, op
from dsl.ir.types import BY_NAME, TensorType, broadcast_shapes, dtype_name

__all__ = ["threefry2x32"]

U32, U64 = BY_NAME["u32"], BY_NAME["u64"]
BIT_DTYPES = tuple(BY_NAME[name] for name in ("u8", "u16", "u32", "u64"))

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = np.uint32(0x1BD11BDA)


def threefry2x32(
    k0: np.ndarray, k1: np.ndarray, c0: np.ndarray, c1: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Encrypt counters with keys, elementwise; all uint32, broadcast together.

    Five groups of four rounds (add, rotate, xor); after each, two of the three key words are added, in turn.
    Rank-0 results come back as rank 1, because NumPy warns when a scalar wraps.
    """
    k0, k1, c0, c1 = np.atleast_1d(k0, k1, c0, c1)
    keys = (k0, k1, k0 ^ k1 ^ PARITY)
    x0, x1 = (np.array(x) for x in np.broadcast_arrays(c0 + k0, c1 + k1))
    for group in range(5):
        for distance in ROTATIONS[group % 2]:
            x0 += x1
            x1 = _rotate(x1, distance)
            x1 ^= x0
        x0 += keys[(group + 1) % 3]
        x1 += keys[(group + 2) % 3] + np.uint32(group + 1)
    return x0, x1


def _rotate(x: np.ndarray, distance: int) -> np.ndarray:
    left = x << np.uint32(distance)
    left |= x >> np.uint32(32 - distance)
    return left


def _encrypt(key: np.ndarray, counter: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Encrypt uint64 counters with the keys `key[..., :]`, broadcast with them."""
    high, low = (counter >> np.uint64(32)).astype(U32), counter.astype(U32)
    return threefry2x32(key[..., 0], key[..., 1], high, low)


# -- type rules --------------------------------------------------------------------------------------------------


KEYS = exactly(U32)


def _check_key(name: str, key: TensorType) -> None:
    if key.rank == 0 or key.shape[-1] != 2:
        raise ShapeError(f"{name}: a key must be u32[2], got {key}")


def _random_bits_type(inputs: Inputs, attrs: Attrs) -> TensorType:
    (key,) = operands("random_bits", inputs, key=KEYS)
    _check_key("random_bits", key)
    dtype, shape = check_dtype("random_bits", attrs["dtype"]), tuple(attrs["shape"])
    if dtype not in BIT_DTYPES:
        refuse("random_bits", "dtype", "u8, u16, u32 or u64", dtype_name(dtype))
    if any(isinstance(dim, int) and dim < 0 for dim in shape):
        raise ShapeError("negative dimensions are not allowed")
    return TensorType(dtype, key.shape[:-1] + shape)


def _fold_in_type(inputs: Inputs, attrs: Attrs) -> TensorType:
    key, data = operands("fold_in", inputs, key=KEYS, data=INTEGERS)
    _check_key("fold_in", key)
    return key.with_shape(broadcast_shapes(key.shape[:-1], data.shape) + (2,))


# -- meanings ----------------------------------------------------------------------------------------------------


def _random_bits(key: np.ndarray, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    w0, w1 = _encrypt(key[..., None, :], np.arange(prod(shape), dtype=U64))
    wide = dtype == U64
    bits = w0.astype(U64) << np.uint64(32) | w1 if wide else (w0 ^ w1).astype(dtype)
    return np.reshape(bits, key.shape[:-1] + tuple(shape))


def _fold_in(key: np.ndarray, data: np.ndarray) -> np.ndarray:
    data = np.asarray(data)
    shape = np.broadcast_shapes(key.shape[:-1], data.shape)
    return np.stack(_encrypt(key, data.astype(U64)), axis=-1).reshape(shape + (2,))


# -- samples -----------------------------------------------------------------------------------------------------


def _key(rng: np.random.Generator, *batch: int) -> np.ndarray:
    return rng.integers(0, 2**32, (*batch, 2), dtype=U32)


def _bits_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for dtype in BIT_DTYPES:
        for shape in ((), (7,), (3, 4), (0,), (2, 0, 3)):
            yield Sample((_key(rng),), {"shape": shape, "dtype": dtype})
        yield Sample((_key(rng, 3),), {"shape": (5,), "dtype": dtype})


def _fold_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for name in ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"):
        limits = np.iinfo(BY_NAME[name])
        for number in (0, 1, limits.min, limits.max):
            yield Sample((_key(rng), np.array(number, BY_NAME[name])))
    yield Sample((_key(rng), np.arange(5)))
    yield Sample((_key(rng, 2, 1), np.arange(3, dtype=U32)))


RANDOM = frozenset({Trait.PURE, Trait.RANDOM})

op("random_bits", "key -> bits",
   doc="Random bits of a `shape` and unsigned `dtype`, each element a function of key and position.",
   type=_random_bits_type, numpy=_random_bits, traits=RANDOM, samples=_bits_samples)  # fmt: skip
op("fold_in", "key, data -> key", doc="A new key from a key and an integer.",
   type=_fold_in_type, numpy=_fold_in, traits=RANDOM, samples=_fold_samples)  # fmt: skip
