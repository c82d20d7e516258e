"""What type rules say about operands that do not fit, and what printing and assertions do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dsl.errors import InternalError, ShapeError, TypeRuleError
from dsl.ir.build import Builder
from dsl.ir.dims import Symbol
from dsl.ir.graph import Graph
from dsl.ir.interpret import interpret
from dsl.ir.registry import OPS, get_op
from dsl.ir.types import BY_NAME, TensorType, scalar

F64, I64, BOOL = BY_NAME["f64"], BY_NAME["i64"], BY_NAME["bool"]
N, M = Symbol("n"), Symbol("m")


def f64(*shape: Any) -> TensorType:
    return TensorType(F64, shape)


def i64(*shape: Any) -> TensorType:
    return TensorType(I64, shape)


# -- refusals ----------------------------------------------------------------------------------------------------

# An op, its operands and attributes, and the NumPy call that complains in the same words.
NUMPY_WORDS = [
    ("add", [f64(2), f64(3)], {}, lambda x, y: x + y),
    ("broadcast_to", [f64(3)], {"shape": (4,)}, lambda x: np.broadcast_to(x, (4,))),
    ("broadcast_to", [f64(3, 1)], {"shape": (3,)}, lambda x: np.broadcast_to(x, (3,))),
    ("broadcast_to", [f64(1)], {"shape": (-1,)}, lambda x: np.broadcast_to(x, (-1,))),
    ("reshape", [f64(2, 3)], {"shape": (4,)}, lambda x: x.reshape(4)),
    ("reshape", [f64(2, 3)], {"shape": (2, 2)}, lambda x: x.reshape(2, 2)),
    ("transpose", [f64(2, 3)], {"axes": (0,)}, lambda x: x.transpose(0)),
    ("transpose", [f64(2, 3)], {"axes": (0, 0)}, lambda x: x.transpose(0, 0)),
    ("concatenate", [], {"axis": 0}, lambda: np.concatenate([])),
    ("concatenate", [f64()], {"axis": 0}, lambda x: np.concatenate([x])),
    ("concatenate", [f64(2), f64(2, 1)], {"axis": 0}, lambda *xs: np.concatenate(xs)),
    ("concatenate", [f64(2, 3), f64(2, 4)], {"axis": 0}, lambda *xs: np.concatenate(xs)),
    ("pad", [f64(2), f64()], {"low": (-1,), "high": (0,)}, lambda x, v: np.pad(x, (-1, 0))),
    ("full", [f64()], {"shape": (-1,)}, lambda v: np.full(-1, v)),
]


@pytest.mark.parametrize(("name", "types", "attrs", "numpy"), NUMPY_WORDS)
def test_shape_errors_are_in_numpys_words(name: str, types: Any, attrs: Any, numpy: Any) -> None:
    with pytest.raises(ValueError) as theirs:
        numpy(*(np.zeros(type.shape, type.dtype) for type in types))
    with pytest.raises(ShapeError) as ours:
        get_op(name).type(tuple(types), attrs)
    assert ours.value.message == str(theirs.value).strip()


REFUSED = [
    ("add", [f64(3), i64(3)], {}, "add: y must be f64, got i64[3]"),
    ("bitwise_and", [f64(3), f64(3)], {}, "bitwise_and: not defined for operands f64[3], f64[3]"),
    ("add", [f64(3)], {}, "add: expected 2 operands (x, y), got 1"),
    ("where", [f64(), f64(), f64()], {}, "where: condition must be bool, got f64[]"),
    ("bitcast", [f64(3)], {"dtype": BY_NAME["f32"]}, "bitcast: dtype must be as wide as f64, got f32"),
    ("any", [f64(3)], {"axes": (0,)}, "any: x must be bool, got f64[3]"),
    ("gather", [f64(3), f64(2)], {"axes": (0,)}, "gather: index0 must be of integer dtype, got f64[2]"),
    ("gather", [f64(3)], {"axes": (0,)}, "gather: expected 1 index arrays, one per axis, got 0"),
    ("scatter", [f64(3), i64(2), i64(2)], {"axes": (0,), "mode": "add"}, "scatter: v must be f64 as x is, got i64[2]"),
    ("nonzero", [f64()], {}, "nonzero: x must be of rank 1 or more, got f64[]"),
    ("unique", [f64(2, 2)], {}, "unique: x must be of rank 1, got f64[2, 2]"),
    ("iota", [], {"size": 3, "dtype": BOOL}, "iota: dtype must be of numeric dtype, got bool"),
    ("update_slice", [f64(3), f64(2)], {"start": (0,), "step": (0,)},
     "update_slice: step must be other than 0, got (0,)"),
    ("assert", [f64()], {"message": "", "error": "ValueError"}, "assert: pred must be bool, got f64[]"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "types", "attrs", "message"), REFUSED)
def test_type_errors_name_op_operand_expected_and_got(
    name: str, types: Any, attrs: Any, message: str
) -> None:
    with pytest.raises(TypeRuleError) as found:
        get_op(name).type(tuple(types), attrs)
    assert found.value.message == message


OUTSIDE = [
    ("slice", [f64(3)], {"start": (1,), "size": (3,), "step": (1,)}),
    ("slice", [f64(3)], {"start": (1,), "size": (3,), "step": (-1,)}),
    ("slice", [f64(N)], {"start": (N,), "size": (1,), "step": (1,)}),
    ("slice", [f64(3)], {"start": (0,), "size": (-1,), "step": (1,)}),
    ("update_slice", [f64(3), f64(2)], {"start": (2,), "step": (1,)}),
    ("dynamic_slice", [f64(3), i64()], {"axis": 0, "size": 4}),
    ("update_dynamic_slice", [f64(3, 2), f64(2, 3), i64()], {"axis": 0}),
    ("scatter", [f64(3), f64(3), i64(2)], {"axes": (0,), "mode": "add"}),
    ("reshape", [f64(N)], {"shape": (N + 1,)}),
    ("concatenate", [f64(2, N), f64(2, N + 1)], {"axis": 0}),
]


@pytest.mark.parametrize(("name", "types", "attrs"), OUTSIDE)
def test_sizes_that_can_never_fit_are_refused(name: str, types: Any, attrs: Any) -> None:
    with pytest.raises(ShapeError):
        get_op(name).type(tuple(types), attrs)


SYMBOLIC = [
    ("reshape", [f64(N, 2)], {"shape": (2 * N,)}, f64(2 * N)),
    ("reshape", [f64(N)], {"shape": (M, 3)}, f64(M, 3)),
    ("broadcast_to", [f64(N)], {"shape": (M, N)}, f64(M, N)),
    ("slice", [f64(N)], {"start": (1,), "size": (N - 1,), "step": (1,)}, f64(N - 1)),
    ("slice", [f64(N)], {"start": (N - 1,), "size": (N,), "step": (-1,)}, f64(N)),
    ("concatenate", [f64(N, 3), f64(M, 3)], {"axis": 0}, f64(N + M, 3)),
    ("concatenate", [f64(N, M), f64(2, 3)], {"axis": 0}, f64(N + 2, 3)),
    ("pad", [f64(N), f64()], {"low": (1,), "high": (M,)}, f64(N + M + 1)),
    ("full", [f64()], {"shape": (N, 0)}, f64(N, 0)),
    ("iota", [], {"size": N, "dtype": I64}, i64(N)),
    ("sum", [f64(N, M)], {"axes": (0,)}, f64(M)),
    ("argmax", [f64(N, M)], {"axis": 1}, i64(N)),
    ("gather", [f64(N, M), i64(3, 1), i64(2)], {"axes": (0, 1)}, f64(3, 2)),
    ("gather", [f64(N, M), i64(M)], {"axes": (0,)}, f64(M, M)),
    ("searchsorted", [f64(N), f64(M)], {"side": "left"}, i64(M)),
]


@pytest.mark.parametrize(("name", "types", "attrs", "expected"), SYMBOLIC)
def test_symbolic_results(name: str, types: Any, attrs: Any, expected: TensorType) -> None:
    assert get_op(name).type(tuple(types), attrs) == expected


def test_data_dependent_results_share_one_fresh_symbol() -> None:
    rows, columns = get_op("nonzero").type((f64(2, 3),), {})  # type: ignore[misc]
    assert rows == columns
    assert get_op("nonzero").type((f64(2, 3),), {}) != (rows, columns)
    values, index, inverse, counts = get_op("unique").type((f64(N),), {})  # type: ignore[misc]
    assert (values.shape, inverse.shape) == (index.shape, (N,))
    assert index == counts


def test_symbolic_sizes_are_checked_when_the_program_runs() -> None:
    builder = Builder()
    x = builder.param(f64(N))
    graph = builder.finish([builder.emit("reshape", x, shape=(2, 3))])
    assert interpret(graph, [np.arange(6.0)])[0].shape == (2, 3)
    with pytest.raises(ValueError, match=r"cannot reshape array of size 5 into shape \(2,3\)"):
        interpret(graph, [np.arange(5.0)])


def test_axes_that_are_not_normalised_are_our_own_mistake() -> None:
    with pytest.raises(InternalError, match="axis -1 is not a normalised axis"):
        get_op("sum").type((f64(3),), {"axes": (-1,)})


def test_slices_that_leave_their_axis_raise_when_the_program_runs() -> None:
    message = "index 3 is out of bounds for axis 0 with size 3"
    with pytest.raises(IndexError, match=message):
        OPS["dynamic_slice"].numpy(np.zeros(3), np.array(3), axis=0, size=1)
    with pytest.raises(IndexError, match=message):
        OPS["slice"].numpy(np.zeros(3), start=(1,), size=(3,), step=(1,))


def test_a_step_of_0_repeats_an_element() -> None:
    x = np.arange(3.0)
    found = OPS["dynamic_slice"].numpy(x, np.array(2), axis=0, size=4, step=0)
    assert found.tolist() == [2.0] * 4


def test_integers_to_negative_powers_raise() -> None:
    with pytest.raises(ValueError, match="Integers to negative integer powers are not allowed"):
        OPS["power"].numpy(np.array([2]), np.array([-1]))


# -- effects -----------------------------------------------------------------------------------------------------


def effect(name: str, *types: TensorType, **attrs: Any) -> Graph:
    builder = Builder()
    builder.node(name, [builder.param(type) for type in types], attrs)
    return builder.finish([])


def test_print_formats_scalars_and_arrays(capsys: pytest.CaptureFixture[str]) -> None:
    graph = effect("print", scalar(F64), i64(2), scalar(BOOL), template="{} {} {}", end="!\n")
    interpret(graph, [np.array(0.1), np.array([1, 2]), np.array(True)])
    assert capsys.readouterr().out == "0.1 [1 2] True!\n"


def test_prints_come_in_program_order(capsys: pytest.CaptureFixture[str]) -> None:
    builder = Builder()
    for word in ("one", "two", "three"):
        builder.node("print", [], {"template": word, "end": " "})
    interpret(builder.finish([]), [])
    assert capsys.readouterr().out == "one two three "


def test_print_refuses_a_template_that_asks_for_more_values() -> None:
    with pytest.raises(TypeRuleError, match="does not fit 1 values"):
        effect("print", scalar(F64), template="{} {}", end="")
    effect("print", scalar(F64), template="{0:8.3f} {{}}", end="")


@pytest.mark.parametrize("error", [AssertionError, ValueError, IndexError, ZeroDivisionError])
def test_assert_raises_the_named_error(error: type[Exception]) -> None:
    attrs = {"message": "got {}", "error": error.__name__}
    graph = effect("assert", scalar(BOOL), i64(2), **attrs)
    assert interpret(graph, [np.array(True), np.array([1, 2])]) == []
    with pytest.raises(error, match=r"got \[1 2\]"):
        interpret(graph, [np.array(False), np.array([1, 2])])


def test_assert_refuses_names_that_are_no_exceptions() -> None:
    for name in ("print", "NoSuchError", "KeyboardInterrupt"):
        with pytest.raises(TypeRuleError, match="the name of a known exception"):
            effect("assert", scalar(BOOL), message="", error=name)
