"""`dynamic_partition` and `dynamic_stitch`: what goes where, gradients, and what is refused; eagerly and compiled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dsl

WAYS = pytest.mark.parametrize("way", [lambda f: f, dsl.jit], ids=["eager", "compiled"])


@WAYS
def test_parts_put_together_are_the_whole(way: Any) -> None:
    labels = np.array([0, 1, 0, 2, 1, 0])

    def round_trip(x: Any) -> Any:
        places = dsl.dynamic_partition(np.arange(6), labels, 4)
        return dsl.dynamic_stitch(places, dsl.dynamic_partition(x, labels, 4))

    x = np.arange(12.0).reshape(6, 2)
    assert way(round_trip)(x).tolist() == x.tolist()
    slope = dsl.grad(lambda x: (round_trip(x) * x).sum())(x)
    assert slope.tolist() == (2 * x).tolist()


@WAYS
@pytest.mark.parametrize("bad", [3, -1, 400])
def test_a_label_without_a_part_is_refused(bad: int, way: Any) -> None:
    split = way(lambda x, labels: dsl.dynamic_partition(x, labels, 3))
    with pytest.raises(IndexError, match="out of bounds"):
        split(np.ones(3), np.array([0, bad, 2]))


@WAYS
def test_an_index_below_zero_is_refused(way: Any) -> None:
    stitch = way(lambda index, x: dsl.dynamic_stitch([index], [x]))
    assert stitch(np.array([0, 2]), np.ones(2)).tolist() == [1, 0, 1]
    with pytest.raises(IndexError, match="out of bounds"):
        stitch(np.array([0, -1]), np.ones(2))


@WAYS
def test_nothing_put_together_is_nothing(way: Any) -> None:
    stitch = way(lambda index, x: dsl.dynamic_stitch([index], [x]))
    assert stitch(np.zeros(0, np.int64), np.zeros((0, 2))).shape == (0, 2)


def test_small_integers_and_lists() -> None:
    labels = np.array([0, 255, 0], np.uint8)
    parts = dsl.dynamic_partition([10, 20, 30], labels, 300)
    assert (parts[0].tolist(), parts[255].tolist(), len(parts[299])) == ([10, 30], [20], 0)
    assert dsl.dynamic_stitch([[0, 2], [1]], [[10, 30], [20]]).tolist() == [10, 20, 30]
