"""Random bits: the published answers, the layout, and that an element is a function of key and position."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dsl.errors import ShapeError, TypeRuleError
from dsl.ir.dims import Symbol
from dsl.ir.ops.random import BIT_DTYPES, threefry2x32
from dsl.ir.registry import Trait, get_op
from dsl.ir.types import BY_NAME, TensorType

U32, U64 = BY_NAME["u32"], BY_NAME["u64"]
KEY = np.array([0x13198A2E, 0x03707344], U32)
KEY_TYPE = TensorType(U32, (2,))


def bits(key: np.ndarray, shape: tuple[int, ...], dtype: np.dtype = U32) -> np.ndarray:
    found: np.ndarray = get_op("random_bits").numpy(key, shape=shape, dtype=dtype)
    return found


def fold_in(key: np.ndarray, data: Any) -> np.ndarray:
    found: np.ndarray = get_op("fold_in").numpy(key, data)
    return found


def cipher(key: tuple[int, int], counter: tuple[int, int]) -> tuple[int, int]:
    """Threefry-2x32-20 in Python's integers, one counter at a time."""
    mask = 0xFFFFFFFF
    keys = (*key, key[0] ^ key[1] ^ 0x1BD11BDA)
    x0, x1 = (counter[0] + key[0]) & mask, (counter[1] + key[1]) & mask
    for number in range(20):
        turn = (13, 15, 26, 6, 17, 29, 16, 24)[number % 8]
        x0 = (x0 + x1) & mask
        x1 = (x1 << turn | x1 >> (32 - turn)) & mask ^ x0
        if number % 4 == 3:
            group = number // 4 + 1
            x0, x1 = (x0 + keys[group % 3]) & mask, (x1 + keys[(group + 1) % 3] + group) & mask
    return x0, x1


@pytest.mark.parametrize(
    ("key", "counter", "words"),
    [
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF,) * 2, (0xFFFFFFFF,) * 2, (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_known_answers_of_random123(key: Any, counter: Any, words: Any) -> None:
    found = threefry2x32(*(np.array(word, U32) for word in (*key, *counter)))
    assert tuple(int(word.item()) for word in found) == words
    assert cipher(key, counter) == words


def test_known_answers_of_jax() -> None:
    """`jax.random.split(jax.random.key(0), 3)`."""
    expected = [[1797259609, 2579123966], [928981903, 3453687069], [4146024105, 2718843009]]
    np.testing.assert_array_equal(fold_in(np.zeros(2, U32), np.arange(3)), expected)


def test_layout_of_words() -> None:
    pairs = [cipher((0x13198A2E, 0x03707344), (0, i)) for i in range(6)]
    np.testing.assert_array_equal(bits(KEY, (6,), U64), [a << 32 | b for a, b in pairs])
    np.testing.assert_array_equal(bits(KEY, (2, 3), U32).ravel(), [a ^ b for a, b in pairs])
    for name, mask in (("u16", 0xFFFF), ("u8", 0xFF)):
        narrow = bits(KEY, (6,), BY_NAME[name])
        np.testing.assert_array_equal(narrow, [(a ^ b) & mask for a, b in pairs])


@pytest.mark.parametrize("dtype", BIT_DTYPES, ids=str)
def test_a_longer_result_begins_with_the_shorter_one(dtype: np.dtype) -> None:
    long = bits(KEY, (100,), dtype)
    for size in (0, 1, 7, 99):
        np.testing.assert_array_equal(bits(KEY, (size,), dtype), long[:size])
    np.testing.assert_array_equal(bits(KEY, (), dtype), long[0])
    np.testing.assert_array_equal(bits(KEY, (5, 4, 5), dtype), long.reshape(5, 4, 5))


@pytest.mark.parametrize("dtype", BIT_DTYPES, ids=str)
def test_a_stack_of_keys_gives_a_stack_of_results(dtype: np.dtype) -> None:
    keys = fold_in(KEY, np.arange(6).reshape(2, 3))
    assert keys.shape == (2, 3, 2)
    found = bits(keys, (4, 2), dtype)
    for at in np.ndindex(2, 3):
        np.testing.assert_array_equal(found[at], bits(keys[at], (4, 2), dtype))


def test_fold_in_depends_on_the_value_not_its_dtype() -> None:
    for number in (0, 1, 100):
        keys = [
            fold_in(KEY, np.array(number, BY_NAME[name])) for name in ("i8", "u8", "i32", "u64")
        ]
        assert len({key.tobytes() for key in keys}) == 1
    signed = [fold_in(KEY, np.array(-1, BY_NAME[name])) for name in ("i8", "i16", "i32", "i64")]
    assert len({key.tobytes() for key in signed}) == 1
    np.testing.assert_array_equal(signed[0], cipher(tuple(KEY.tolist()), (0xFFFFFFFF,) * 2))


def test_fold_in_uses_all_64_bits() -> None:
    found = fold_in(KEY, np.array(2**32 + 5))
    assert found.dtype == U32
    np.testing.assert_array_equal(found, cipher(tuple(KEY.tolist()), (1, 5)))


def test_bits_are_even_and_keys_unrelated() -> None:
    x, y = (bits(fold_in(KEY, np.array(i)), (4096,), U64).view(np.uint8) for i in (0, 1))
    for stream in (x, y, x ^ y, x[8:] ^ x[:-8]):
        ones = np.unpackbits(stream).reshape(-1, 64).mean(axis=0)
        assert np.abs(ones - 0.5).max() < 5 * 0.5 / 4096**0.5


def test_neither_warns_nor_writes() -> None:
    key = np.full(2, 0xFFFFFFFF, U32)
    key.setflags(write=False)
    bits(key, (3,))
    fold_in(key, np.array(2**64 - 1, U64))


def test_types() -> None:
    n = Symbol("n")
    rule = get_op("random_bits").type
    assert rule((KEY_TYPE,), {"shape": (n, 3), "dtype": U64}) == TensorType(U64, (n, 3))
    keys = TensorType(U32, (n, 2))
    assert rule((keys,), {"shape": (3,), "dtype": U32}) == TensorType(U32, (n, 3))
    assert get_op("fold_in").type((KEY_TYPE, TensorType(BY_NAME["i8"], ())), {}) == KEY_TYPE
    assert get_op("fold_in").type((KEY_TYPE, TensorType(U32, (n,))), {}) == keys


@pytest.mark.parametrize("name", ["random_bits", "fold_in"])
def test_samples_have_the_type_the_rule_says(name: str) -> None:
    record = get_op(name)
    assert record.traits == {Trait.PURE, Trait.RANDOM}
    for sample in record.samples(np.random.default_rng(0)):
        found = record.numpy(*sample.inputs, **sample.attrs)
        types = tuple(TensorType(x.dtype, x.shape) for x in sample.inputs)
        assert record.type(types, sample.attrs) == TensorType(found.dtype, found.shape)


BITS = {"shape": (), "dtype": U32}


@pytest.mark.parametrize(
    ("name", "inputs", "attrs", "error", "words"),
    [
        ("random_bits", [(U64, (2,))], BITS, TypeRuleError, r"key must be of dtype u32, got u64\[2\]"),
        ("random_bits", [(U32, (3,))], BITS, ShapeError, r"must be u32\[2\], got u32\[3\]"),
        ("random_bits", [(U32, ())], BITS, ShapeError, r"must be u32\[2\], got u32\[\]"),
        ("random_bits", [(U32, (2,))], BITS | {"dtype": BY_NAME["i32"]}, TypeRuleError, "or u64, got i32"),
        ("random_bits", [(U32, (2,))], BITS | {"dtype": "uint32"}, TypeRuleError, "a supported np.dtype"),
        ("random_bits", [(U32, (2,))], BITS | {"shape": (-1,)}, ShapeError, "negative dimensions are not"),
        ("fold_in", [(U32, (2,)), (BY_NAME["f32"], ())], {}, TypeRuleError, "data must be of integer dtype"),
        ("fold_in", [(U32, (2,)), (BY_NAME["bool"], ())], {}, TypeRuleError, "data must be of integer dtype"),
    ],
)  # fmt: skip
def test_refusals(name: str, inputs: Any, attrs: Any, error: Any, words: str) -> None:
    types = tuple(TensorType(dtype, shape) for dtype, shape in inputs)
    with pytest.raises(error, match=words):
        get_op(name).type(types, attrs)
