"""Checkpoints: what is saved comes back, what is damaged is found, and a killed process leaves a whole one."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections import OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass, make_dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from concurrently import in_threads

import dsl
from dsl.checkpoints import format, manager, read_metadata, store
from dsl.errors import (
    CheckpointError,
    ConfigError,
    CorruptCheckpointError,
    DslError,
    MissingCheckpointError,
    NonConcreteError,
)
from dsl.ir.types import DTYPES

Point = namedtuple("Point", "x y")


@dataclass(frozen=True)
class Layer:
    w: Any
    b: Any
    name: str = "layer"

    def __post_init__(self) -> None:
        assert isinstance(self.name, str)


class Cell:
    """A mutable leaf, as variables are."""

    def __init__(self, value: Any) -> None:
        self.value = np.asarray(value)

    def dsl_checkpoint_value(self) -> np.ndarray:
        return self.value

    def dsl_checkpoint_assign(self, array: np.ndarray) -> None:
        self.value[...] = array


def sample(dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """Return random bits, NaNs and all; only bools are 0 or 1."""
    rng = np.random.default_rng(0)
    if dtype == np.bool_:
        return rng.random(shape) < 0.5
    count = int(np.prod(shape)) * dtype.itemsize
    return np.frombuffer(rng.bytes(count), dtype).reshape(shape)


def same(got: Any, expected: Any) -> None:
    """Check that two trees have the same types, dtypes, shapes and bits."""
    assert type(got) is type(expected)
    if isinstance(expected, (np.ndarray, np.generic)):
        assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
        assert got.tobytes() == expected.tobytes()
    elif isinstance(expected, dict):
        assert list(got) == list(expected)
        for key in expected:
            same(got[key], expected[key])
    elif isinstance(expected, (list, tuple)):
        assert len(got) == len(expected)
        for a, b in zip(got, expected):
            same(a, b)
    elif hasattr(expected, "__dataclass_fields__"):
        same(vars(got), vars(expected))
    else:
        assert repr(got) == repr(expected)


def round_trip(path: Path, tree: Any) -> Any:
    file = path / "tree.safetensors"
    dsl.save(file, tree)
    got = dsl.restore(file)
    same(got, tree)
    same(dsl.restore(file, like=tree), tree)
    return got


# -- round trips -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (7,), (5, 4, 3)], ids=str)
def test_every_dtype_comes_back(tmp_path: Path, dtype: np.dtype, shape: tuple[int, ...]) -> None:
    array = sample(dtype, shape)
    round_trip(tmp_path, {"a": array, "t": array.T, "scalar": sample(dtype, ())[()]})


@pytest.mark.parametrize("dtype", ["bool", "i2", "f4", "c8", "c16", ml_dtypes.bfloat16], ids=str)
def test_layouts_come_back_as_values(tmp_path: Path, dtype: Any) -> None:
    base = sample(np.dtype(dtype), (6, 8, 5))
    views = [base.T, base[::2, ::-1, 1:4], np.asfortranarray(base), base[:, :0], base[:, 3]]
    views += [np.broadcast_to(base[0, 0], (4, 5)), base[..., ::2]]
    file = tmp_path / "views"
    dsl.save(file, views)
    for got, view in zip(dsl.restore(file), views, strict=True):
        same(got, np.ascontiguousarray(view))
        assert got.flags.c_contiguous
        assert got.flags.writeable
        assert got.flags.owndata


def test_arrays_longer_than_a_piece_come_back(tmp_path: Path) -> None:
    long = np.arange(3 * format._CHUNK // 8 + 17.0)
    file = tmp_path / "long"
    dsl.save(file, {"long": long, "odd": long[::3], "table": long[: 2**17].reshape(2**8, -1).T})
    got = dsl.restore(file)
    np.testing.assert_array_equal(got["long"], long)
    np.testing.assert_array_equal(got["odd"], long[::3])
    np.testing.assert_array_equal(got["table"], long[: 2**17].reshape(2**8, -1).T)


def test_arrays_of_the_other_byte_order_come_back_native(tmp_path: Path) -> None:
    dsl.save(tmp_path / "a", {"f": np.arange(5, dtype=">f4"), "c": np.array([1 + 2j], ">c16")})
    same(dsl.restore(tmp_path / "a"), {"f": np.arange(5, dtype="f4"), "c": np.array([1 + 2j])})
    like = {"f": np.zeros(5, ">f4"), "c": np.zeros(1, complex)}
    np.testing.assert_array_equal(dsl.restore(tmp_path / "a", like=like)["f"], np.arange(5))


@pytest.mark.parametrize(
    "tree",
    [
        np.arange(3.0), 5, "text", None, {}, [], (), [[], {}, ()], {"a": None},
        [True, False, 0, -1, 10**40, 0.1, float("inf"), float("-inf"), float("nan"), -0.0, 1e-320],
        [1 + 2j, complex("nan"), "ä\n\"'\\ \x00 \U0001f600 /", b"\x00\xff", ""],
        [np.float32(1.5), np.int8(-3), np.bool_(True), np.complex64(1j), ml_dtypes.bfloat16(2.5)],
        {"b": 1, "a": [np.arange(2), (np.ones(1), {"c": np.zeros((2, 2))})]},
        OrderedDict(z=np.ones(1), a=2), Point(np.ones(2), [Point(1, 2)]),
        Layer(np.ones((2, 3)), None, "first"), [Layer({"deep": np.ones(1)}, (Layer(1, 2),))],
        {0: 1, "x": 2, (1, "a", (None,)): 3, None: 4, 2.5: 5, True + 5: 6, b"k": 7, 1j: 8},
        {"a/b": 1, "a": {"b": 2}, "a~1b": 3, "": {"": 4}, "__metadata__": np.ones(1), "~2metadata": 5},
    ],
    ids=lambda tree: repr(tree)[:40],
)  # fmt: skip
def test_structures_come_back(tmp_path: Path, tree: Any) -> None:
    round_trip(tmp_path, tree)


def test_a_default_dict_comes_back_as_a_dict(tmp_path: Path) -> None:
    dsl.save(tmp_path / "a", defaultdict(list, a=1))
    same(dsl.restore(tmp_path / "a"), {"a": 1})


def test_the_state_of_every_optimiser_comes_back(tmp_path: Path) -> None:
    params = {"w": np.ones((3, 2)), "b": np.zeros(2, np.float32)}
    grads = {"w": np.full((3, 2), 0.5), "b": np.ones(2, np.float32)}
    for name in ("SGD", "Momentum", "Adagrad", "AdagradDA", "Adadelta", "RMSProp", "Adam", "Ftrl"):
        optimiser = getattr(dsl.optim, name)(0.1, *([0.9] if name == "Momentum" else []))
        params, state = optimiser.update(grads, optimiser.init(params), params)
        round_trip(tmp_path, {"params": params, "opt": state})
        round_trip(tmp_path, optimiser)


def test_training_goes_on_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    optimiser, grads = dsl.optim.Adam(0.1), {"w": np.array([0.3, -0.2])}
    params = {"w": np.ones(2)}
    state = optimiser.init(params)
    for _ in range(3):
        params, state = optimiser.update(grads, state, params)
    dsl.save(tmp_path / "a", (params, state))
    expected = optimiser.update(grads, state, params)
    fresh = {"w": np.zeros(2)}
    params, state = dsl.restore(tmp_path / "a", like=(fresh, optimiser.init(fresh)))
    same(optimiser.update(grads, state, params), expected)


def test_metadata_come_back(tmp_path: Path) -> None:
    dsl.save(tmp_path / "a", {}, metadata={"loss": 0.25, "git": ["abc", None]})
    assert read_metadata(tmp_path / "a") == {"loss": 0.25, "git": ["abc", None]}
    dsl.save(tmp_path / "a", {})
    assert read_metadata(tmp_path / "a") is None
    with pytest.raises(CheckpointError, match="metadata that JSON cannot hold"):
        dsl.save(tmp_path / "a", {}, metadata=np.ones(2))


def test_variables_are_read_and_assigned_in_place(tmp_path: Path) -> None:
    cell = Cell([1.0, 2.0])
    dsl.save(tmp_path / "a", {"v": cell, "n": 1})
    same(dsl.restore(tmp_path / "a"), {"v": np.array([1.0, 2.0]), "n": 1})
    other = Cell([0.0, 0.0])
    memory = other.value
    got = dsl.restore(tmp_path / "a", like={"v": other, "n": 0})
    assert got == {"v": other, "n": 1}
    np.testing.assert_array_equal(memory, [1.0, 2.0])


def test_no_variable_is_assigned_when_something_is_wrong(tmp_path: Path) -> None:
    file = tmp_path / "a"
    dsl.save(file, [np.ones(2), np.ones(3), 300])
    cells = [Cell([0.0, 0.0]), Cell([0.0, 0.0])]
    with pytest.raises(CheckpointError, match="wrong shape: 1 is f64\\[3\\] in the file"):
        dsl.restore(file, like=[*cells, 0])
    cells[1] = Cell(np.zeros(3))
    with pytest.raises(CheckpointError, match="2: 300 is not in the range of u8"):
        dsl.restore(file, like=[*cells, np.uint8(0)])
    flip(file, file.stat().st_size - 1)
    with pytest.raises(CorruptCheckpointError, match="array '1' is wrong"):
        dsl.restore(file, like=[*cells, 0])
    assert not any(cell.value.any() for cell in cells)


def test_a_file_is_a_function_of_the_tree(tmp_path: Path) -> None:
    tree = {"a": np.arange(5), "b": [1.5, np.ones(2)]}
    dsl.save(tmp_path / "a", tree)
    dsl.save(tmp_path / "b", tree)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_arrays_of_other_libraries_are_saved(tmp_path: Path) -> None:
    class Foreign:
        dtype, shape = "their float", (2,)

        def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
            return np.array([1.0, 2.0])

    dsl.save(tmp_path / "a", [Foreign()])
    same(dsl.restore(tmp_path / "a", like=[Foreign()]), [np.array([1.0, 2.0])])


# -- the format ------------------------------------------------------------------------------------


def test_the_layout_is_that_of_safetensors(tmp_path: Path) -> None:
    tree = {"b": np.ones(3, bool), "w": np.arange(6.0).reshape(2, 3), "c": np.array([1 + 2j], "c8")}
    dsl.save(tmp_path / "a", tree)
    raw = (tmp_path / "a").read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    assert (8 + length) % 64 == 0
    assert set(map(type, header.pop("__metadata__").values())) == {str}
    assert header == {
        "w": {"dtype": "F64", "shape": [2, 3], "data_offsets": [0, 48]},
        "c": {"dtype": "F32", "shape": [1, 2], "data_offsets": [48, 56]},
        "b": {"dtype": "BOOL", "shape": [3], "data_offsets": [56, 59]},
    }
    assert raw[8 + length :] == tree["w"].tobytes() + tree["c"].tobytes() + b"\1\1\1"


def test_the_safetensors_package_reads_our_files(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors")
    numpy = pytest.importorskip("safetensors.numpy")
    arrays = {str(d): sample(d, s) for d, s in zip(DTYPES, [(), (0, 2), (3,)] * 5)}
    arrays = {name: a for name, a in arrays.items() if a.dtype.name not in ("bfloat16",)}
    dsl.save(tmp_path / "a", {"params": arrays, "n": 1})
    got = numpy.load_file(tmp_path / "a")
    for name, array in arrays.items():
        parts = np.stack([array.real, array.imag], -1) if array.dtype.kind == "c" else array
        assert got[f"params/{name}"].tobytes() == parts.tobytes()
        assert got[f"params/{name}"].shape == parts.shape
    dsl.save(tmp_path / "b", {"x": np.ones(3, ml_dtypes.bfloat16)})
    with safetensors.safe_open(tmp_path / "b", "np") as file:
        assert file.get_slice("x").get_dtype() == "BF16"
        assert json.loads(file.metadata()["dsl.tree"])["keys"] == ["x"]


# -- damage ----------------------------------------------------------------------------------------


def flip(path: Path, place: int, bits: int = 0xFF) -> None:
    raw = bytearray(path.read_bytes())
    raw[place] ^= bits
    path.write_bytes(raw)


@pytest.mark.parametrize("bits", [0x01, 0x20, 0x80, 0xFF])
def test_a_flipped_byte_anywhere_is_found(tmp_path: Path, bits: int) -> None:
    file = tmp_path / "a"
    dsl.save(file, {"w": np.arange(20.0), "b": [np.ones(3, bool), "text"]}, metadata={"n": 1})
    raw = file.read_bytes()
    for place in range(len(raw)):
        file.write_bytes(raw[:place] + bytes([raw[place] ^ bits]) + raw[place + 1 :])
        with pytest.raises(CorruptCheckpointError, match=str(file)):
            dsl.restore(file)


def test_a_truncated_file_is_found_at_every_length(tmp_path: Path) -> None:
    file = tmp_path / "a"
    dsl.save(file, {"w": np.arange(20.0), "empty": np.ones(0)})
    raw = file.read_bytes()
    for length in range(len(raw)):
        file.write_bytes(raw[:length])
        with pytest.raises(CorruptCheckpointError):
            dsl.restore(file)
        with pytest.raises(CorruptCheckpointError):
            read_metadata(file)
    file.write_bytes(raw + b"\0")
    with pytest.raises(CorruptCheckpointError, match=r"should have .* bytes and has"):
        dsl.restore(file)


def test_what_is_damaged_is_named(tmp_path: Path) -> None:
    file = tmp_path / "a"
    tree = {"params": {"w": np.arange(4.0), "b": np.zeros(2)}}
    dsl.save(file, tree)
    raw, size = file.read_bytes(), file.stat().st_size
    for place, says in [
        (3, "its header should have"),
        (8, "does not begin as a checkpoint of dsl does"),
        (raw.index(b"dsl.tree") + 30, "the checksum of its header is wrong"),
        (size - 20, "the checksum of the array 'params/w' is wrong"),
        (size - 1, "the checksum of the array 'params/b' is wrong"),
    ]:
        file.write_bytes(raw)
        flip(file, place)
        with pytest.raises(CorruptCheckpointError, match=says) as caught:
            dsl.restore(file, like=tree)
        assert "older checkpoint" in caught.value.remedy


def test_other_files_are_refused(tmp_path: Path) -> None:
    for content in (b"", b"PK\3\4", b"\x89PNG\r\n\x1a\n" + bytes(100), b"\x02" + bytes(7) + b"{}"):
        (tmp_path / "a").write_bytes(content)
        with pytest.raises(CorruptCheckpointError, match="damaged, or is no checkpoint of dsl"):
            dsl.restore(tmp_path / "a")


def test_a_newer_format_is_refused_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(format, "VERSION", "2")
        dsl.save(tmp_path / "a", {})
    with pytest.raises(CheckpointError, match="is in format 2; this version of dsl reads format 1"):
        dsl.restore(tmp_path / "a")


def test_a_missing_file_is_also_file_not_found(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no checkpoint .*/none") as caught:
        dsl.restore(tmp_path / "none")
    assert isinstance(caught.value, MissingCheckpointError)
    assert isinstance(caught.value, DslError)
    with pytest.raises(MissingCheckpointError, match=r"there is no directory .*/none\n.*makedirs"):
        dsl.save(tmp_path / "none" / "a", {})


def test_saving_under_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(MissingCheckpointError, match="there is no directory"):
        dsl.save(tmp_path / "file" / "a", {})


# -- fitting a tree --------------------------------------------------------------------------------


def test_all_that_does_not_fit_is_listed(tmp_path: Path) -> None:
    file = tmp_path / "a"
    dsl.save(
        file, {"w": np.ones((3, 4)), "b": np.ones(3, np.float32), "old": [np.ones(1), "x"], "n": 1}
    )
    like = {"w": np.ones((4, 3)), "b": np.ones(3), "new": np.ones((), bool), "n": "1", "k": 2}
    with pytest.raises(CheckpointError) as caught:
        dsl.restore(file, like=like)
    assert caught.value.message == textwrap.dedent(f"""\
        {file} does not fit the tree:
          missing: new, bool[]
          missing: k, Python int
          extra: old/0, f64[1]
          extra: old/1, Python str
          wrong shape: w is f64[3, 4] in the file, f64[4, 3] in the tree
          wrong type: b is f32[3] in the file, f64[3] in the tree
          wrong type: n is Python int in the file, Python str in the tree""")
    assert "change the tree" in caught.value.remedy


def test_without_strict_what_is_missing_keeps_its_value(tmp_path: Path) -> None:
    file = tmp_path / "a"
    dsl.save(file, {"w": np.ones(2), "old": 1})
    like = {"w": np.zeros(2), "new": np.full(1, 7.0), "f": abs}
    with pytest.raises(CheckpointError, match="Fix: pass strict=False"):
        dsl.restore(file, like=like)
    got = dsl.restore(file, like=like, strict=False)
    assert list(got) == ["w", "new", "f"]
    assert got["new"] is like["new"]
    assert got["f"] is abs
    np.testing.assert_array_equal(got["w"], 1)
    with pytest.raises(CheckpointError, match="wrong shape"):
        dsl.restore(file, like={"w": np.zeros(3)}, strict=False)


def test_containers_are_those_of_the_tree(tmp_path: Path) -> None:
    file = tmp_path / "a"
    dsl.save(file, {"w": np.ones(2), "b": [1, 2], "name": "n"})
    got = dsl.restore(file, like=Layer(np.zeros(2), (0, 0), ""))
    same(got, Layer(np.ones(2), (1, 2), "n"))


def test_none_and_arrays_do_not_fit_each_other(tmp_path: Path) -> None:
    dsl.save(tmp_path / "a", {"x": None, "y": np.ones(1)})
    with pytest.raises(CheckpointError, match=r"missing: x, f64\[2\]\n  extra: y, f64\[1\]"):
        dsl.restore(tmp_path / "a", like={"x": np.ones(2), "y": None})


@pytest.mark.parametrize(
    ("saved", "like", "expected"),
    [
        (np.int64(5), 0, 5), (np.array(2.5, np.float32), 0.0, 2.5), (5, np.int64(0), np.int64(5)),
        (5, np.zeros((), np.int32), np.array(5, np.int32)), (3, 0.0, 3.0), (np.bool_(True), False, True),
        (np.array(7), np.int64(0), np.int64(7)), (np.int64(7), np.zeros((), int), np.array(7)),
        (ml_dtypes.bfloat16(1.5), 0.0, 1.5), (1j, np.complex64(0), np.complex64(1j)),
        (0.5, ml_dtypes.bfloat16(0), ml_dtypes.bfloat16(0.5)),
    ],
)  # fmt: skip
def test_numbers_take_the_form_of_the_tree(
    tmp_path: Path, saved: Any, like: Any, expected: Any
) -> None:
    dsl.save(tmp_path / "a", [saved])
    same(dsl.restore(tmp_path / "a", like=[like]), [expected])


@pytest.mark.parametrize(
    ("saved", "like"),
    [(1.5, 1), (True, 1), (1, True), (np.float64(1), 1), (1, np.float64(1)), (np.ones(1), 1.0),
     (1.0, np.ones(1)), ("1", 1), (1, None), (b"a", "a"), (1, abs), (np.ones(1), abs),
     (np.int32(1), np.int64(1))],
)  # fmt: skip
def test_numbers_of_another_kind_do_not_fit(tmp_path: Path, saved: Any, like: Any) -> None:
    dsl.save(tmp_path / "a", [saved])
    with pytest.raises(CheckpointError, match="does not fit the tree"):
        dsl.restore(tmp_path / "a", like=[like])


def test_types_that_cannot_be_found_ask_for_a_tree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a"
    local = make_dataclass("Local", ["w"])
    dsl.save(file, local(np.ones(1)))
    with pytest.raises(CheckpointError, match=r"the tree has a .*Local.*\nFix: .*like=tree"):
        dsl.restore(file)
    assert dsl.restore(file, like=local(np.zeros(1))).w == 1
    dsl.save(file, Layer(1, 2))
    monkeypatch.setitem(globals(), "Layer", make_dataclass("Layer", ["w", "c"]))
    with pytest.raises(CheckpointError, match="the fields w, b, name; now it has the fields w, c"):
        dsl.restore(file)
    monkeypatch.setitem(globals(), "Layer", print)
    with pytest.raises(CheckpointError, match="now it has no fields"):
        dsl.restore(file)
    dsl.save(file, Point(1, 2))
    monkeypatch.setitem(globals(), "Point", namedtuple("Point", "x y z"))
    with pytest.raises(CheckpointError, match="now it has the fields 0, 1, 2"):
        dsl.restore(file)


# -- what cannot be saved --------------------------------------------------------------------------


def test_all_that_cannot_be_saved_is_listed(tmp_path: Path) -> None:
    tree = {
        "f": abs, "o": [object()], "s": np.array(["a"]), "d": np.ones(2, "M8[s]"), "x": np.array([None]),
        "m": np.ma.masked_array([1, 2], [True, False]), "t": np.ndarray, "ok": np.ones(2), frozenset(): 1,
    }  # fmt: skip
    with pytest.raises(CheckpointError) as caught:
        dsl.save(tmp_path / "a", tree)
    assert caught.value.message == textwrap.dedent("""\
        this tree cannot be saved:
          f: of type builtin_function_or_method
          o/0: of type object
          s: of type ndarray of dtype <U1
          d: of type ndarray of dtype datetime64[s]
          x: of type ndarray of dtype object
          m: of type MaskedArray of dtype int64
          t: of type type
          the key frozenset(): of type frozenset""")
    assert "arrays, numbers, strings" in caught.value.remedy
    assert os.listdir(tmp_path) == []


def test_two_entries_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="1/a: the name of 2 entries"):
        dsl.save(tmp_path / "a", {1: {"a": 0}, "1": {"a": 0}})


def test_traced_values_are_refused(tmp_path: Path) -> None:
    @dsl.jit
    def step(x: Any) -> Any:
        dsl.save(tmp_path / "a", {"x": x})
        return x + 1

    with pytest.raises(NonConcreteError):
        step(np.ones(3))


# -- writing ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fsync", "replace"])
def test_a_failed_save_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    dsl.save(tmp_path / "a", [1])
    monkeypatch.setattr(store.os, name, full_disk)
    with pytest.raises(OSError, match="No space left") as caught:
        dsl.save(tmp_path / "a", [2])
    assert "which is as it was before" in caught.value.__notes__[0]
    monkeypatch.undo()
    assert dsl.restore(tmp_path / "a") == [1]
    assert os.listdir(tmp_path) == ["a"]


def full_disk(*_: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_real_full_disk_is_reported() -> None:
    with open("/dev/full", "wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
        format.write(file, {"a": np.ones(10**6)}, {})  # type: ignore[arg-type]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    os.symlink(tmp_path / "real" / "a", tmp_path / "link")
    dsl.save(tmp_path / "link", [1])
    assert dsl.restore(tmp_path / "real" / "a") == [1]
    assert (tmp_path / "link").is_symlink()


def test_the_umask_decides_who_may_read(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        dsl.save(tmp_path / "a", [1])
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o640


def test_threads_that_save_to_one_file_leave_a_whole_one(tmp_path: Path) -> None:
    def work(k: int) -> None:
        for _ in range(15):
            dsl.save(tmp_path / "a", {"k": k, "x": np.full(1000, k)})
            got = dsl.restore(tmp_path / "a")
            assert (got["x"] == got["k"]).all()

    in_threads(4, work)
    assert os.listdir(tmp_path) == ["a"]


def test_an_array_that_changes_while_it_is_saved_makes_no_damaged_file(tmp_path: Path) -> None:
    x, stop = np.zeros(2**18), threading.Event()

    def change() -> None:
        while not stop.is_set():
            np.add(x, 1, out=x)

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(10):
            dsl.save(tmp_path / "a", x)
            dsl.restore(tmp_path / "a")
    finally:
        stop.set()
        thread.join()


# -- the manager -----------------------------------------------------------------------------------


def tree_of(step: int, size: int = 10) -> dict[str, Any]:
    return {"step": step, "w": np.full(size, float(step))}


@pytest.mark.parametrize("background", [True, False])
def test_a_manager_saves_and_restores(tmp_path: Path, background: bool) -> None:
    with dsl.CheckpointManager(tmp_path / "new" / "run", background=background) as run:
        assert (run.steps(), run.latest(), run.restored) == ([], None, None)
        with pytest.raises(MissingCheckpointError, match="there is no checkpoint in"):
            run.restore()
        for step in (1, 20, np.int64(3), np.array(12)):
            assert run.save(step, tree_of(int(step)), metadata={"loss": int(step)})
        same(run.restore(), tree_of(20))
        assert run.restored == 20
        same(run.restore(step=3), tree_of(3))
        same(run.restore(like=tree_of(0)), tree_of(20))
        assert (run.steps(), run.latest(), run.metadata(12)) == ([1, 3, 12, 20], 20, {"loss": 12})
        run.save(3, tree_of(33))
    same(run.restore(3), tree_of(33))
    with pytest.raises(ConfigError, match="closed"):
        run.save(4, {})
    with pytest.raises(MissingCheckpointError, match="step-0000000004"):
        run.restore(4)


@pytest.mark.parametrize(
    ("keep", "keep_every", "kept"),
    [
        (2, None, [9, 10]), (1, None, [10]), (None, None, [*range(11)]), (3, 4, [0, 4, 8, 9, 10]),
        (1, 5, [0, 5, 10]), (50, 3, [*range(11)]), (1, 1, [*range(11)]),
    ],
)  # fmt: skip
def test_what_is_kept(
    tmp_path: Path, keep: int | None, keep_every: int | None, kept: list[int]
) -> None:
    with dsl.CheckpointManager(tmp_path, keep, keep_every) as run:
        for step in range(11):
            run.save(step, tree_of(step))
    assert run.steps() == kept
    assert len(os.listdir(tmp_path)) == len(kept)


def test_a_step_before_those_there_is_kept_once_saved(tmp_path: Path) -> None:
    with dsl.CheckpointManager(tmp_path, keep=2) as run:
        for step in (10, 20, 30, 5):
            run.save(step, tree_of(step))
    assert run.steps() == [5, 20, 30]


@pytest.mark.parametrize("bad", [{"keep": 0}, {"keep": -1}, {"keep_every": 0}])
def test_bad_numbers_are_refused(tmp_path: Path, bad: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="expected a whole number, 1 or more, or None"):
        dsl.CheckpointManager(tmp_path, **bad)
    run = dsl.CheckpointManager(tmp_path)
    with pytest.raises(ConfigError, match="step=-1: expected a whole number, 0 or more"):
        run.save(-1, {})
    with pytest.raises(TypeError):
        run.save(1.5, {})  # type: ignore[arg-type]


@pytest.mark.parametrize("damage", ["data", "header", "truncated", "empty"])
def test_the_newest_whole_one_is_restored(
    tmp_path: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with dsl.CheckpointManager(tmp_path) as run:
        for step in (1, 2, 3):
            run.save(step, tree_of(step))
    newest = tmp_path / "step-0000000003.safetensors"
    size = newest.stat().st_size
    if damage in ("data", "header"):
        flip(newest, size - 1 if damage == "data" else 50)
    else:
        os.truncate(newest, size - 1 if damage == "truncated" else 0)
    same(run.restore(), tree_of(2))
    assert run.restored == 2
    assert run.latest() == (3 if damage == "data" else 2)
    assert "[dsl.checkpoints] step 3 is passed over: " in capsys.readouterr().err
    with pytest.raises(CorruptCheckpointError):
        run.restore(3)
    for step in (1, 2):
        os.truncate(run._path(step), 5)
    with pytest.raises(CorruptCheckpointError, match=r"no checkpoint in .* is whole:\n(.*\n){2}.*"):
        run.restore()


def test_a_tree_that_does_not_fit_is_no_reason_to_pass_over(tmp_path: Path) -> None:
    with dsl.CheckpointManager(tmp_path) as run:
        run.save(1, {"w": np.ones(2)})
        run.save(2, {"w": np.ones(3)})
    with pytest.raises(CheckpointError, match="wrong shape"):
        run.restore(like={"w": np.ones(2)})


class Gate:
    """Stands in for the writing of files: saves begin when it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: BaseException | None = None) -> None:
        self.opened, self.entered, self.error = threading.Event(), threading.Event(), error
        self.write = manager.write_parts
        monkeypatch.setattr(manager, "write_parts", self)

    def __call__(self, *args: Any) -> None:
        self.entered.set()
        assert self.opened.wait(10)
        if self.error is not None:
            raise self.error
        self.write(*args)


def test_a_save_does_not_wait_and_takes_the_values_of_its_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    tree = {"w": np.zeros(3), "t": np.zeros((2, 3)).T, "v": Cell(np.zeros(2)), "l": [1]}
    with dsl.CheckpointManager(tmp_path) as run:
        run.save(1, tree)
        for array in (tree["w"], tree["t"], tree["v"].value):
            array += 1
        tree["l"].append(2)
        assert run.steps() == []
        gate.opened.set()
    got = run.restore()
    assert got["l"] == [1]
    assert not any(got[name].any() for name in "wtv")


def test_a_second_save_is_skipped_or_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gate = Gate(monkeypatch)
    with dsl.config.override(logs="checkpoints"), dsl.CheckpointManager(tmp_path) as run:
        run.save(1, tree_of(1))
        assert run.save(2, tree_of(2), skip_if_busy=True) is False
        threading.Timer(0.05, gate.opened.set).start()
        assert run.save(3, tree_of(3)) is True
        run.wait()
        assert run.save(4, tree_of(4), skip_if_busy=True) is True
    assert run.steps() == [1, 3, 4]
    lines = capsys.readouterr().err
    assert "step 2 is skipped: the save before is still under way" in lines
    assert "[dsl.checkpoints] step 3 saved in " in lines


@pytest.mark.parametrize("call", ["save", "wait", "close", "restore"])
def test_an_error_in_the_background_is_raised_by_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = dsl.CheckpointManager(tmp_path)
    run.save(1, tree_of(1))
    run.wait()
    with monkeypatch.context() as patch:
        patch.setattr(store.os, "fsync", full_disk)
        run.save(2, tree_of(2))
        while run._busy.locked():
            time.sleep(0.001)
    with pytest.raises(OSError, match="No space left"):
        getattr(run, call)(*([3, tree_of(3)] if call == "save" else []))
    assert "step 2 could not be saved: [Errno 28] No space left" in capsys.readouterr().err
    run.wait()
    same(run.restore(), tree_of(1))
    assert len(os.listdir(tmp_path)) == 1
    if call != "close":
        run.save(4, tree_of(4))
        run.wait()
        assert run.steps() == [1, 4]


def test_a_directory_that_goes_away_is_an_error(tmp_path: Path) -> None:
    run = dsl.CheckpointManager(tmp_path / "run")
    os.rmdir(tmp_path / "run")
    run.save(1, {})
    with pytest.raises(MissingCheckpointError, match="there is no directory"):
        run.wait()
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        dsl.CheckpointManager(tmp_path / "file")


def test_errors_in_the_foreground_are_raised_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = dsl.CheckpointManager(tmp_path, background=False)
    monkeypatch.setattr(store.os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        run.save(1, {})
    monkeypatch.undo()
    assert run.save(1, {}, skip_if_busy=True)
    run.close()


def test_a_tree_that_cannot_be_saved_is_refused_at_once(tmp_path: Path) -> None:
    with dsl.CheckpointManager(tmp_path) as run:
        with pytest.raises(CheckpointError, match="f: of type"):
            run.save(1, {"f": abs})
        with pytest.raises(CheckpointError, match="metadata"):
            run.save(1, {}, metadata=abs)
        assert run.save(2, {}, skip_if_busy=True)


def test_the_error_of_a_block_goes_before_that_of_the_background(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Gate(monkeypatch, error=RuntimeError("background")).opened.set()

    def train(error: Exception | None) -> None:
        with dsl.CheckpointManager(tmp_path) as run:
            run.save(1, {})
            if error is not None:
                raise error

    with pytest.raises(KeyError, match="mine"):
        train(KeyError("mine"))
    with pytest.raises(RuntimeError, match="background"):
        train(None)


def test_threads_share_a_manager(tmp_path: Path) -> None:
    def work(k: int) -> None:
        for step in range(k, 40, 4):
            run.save(step, tree_of(step))

    with dsl.CheckpointManager(tmp_path, keep=None) as run:
        in_threads(4, work)
    assert run.steps() == list(range(40))
    for step in run.steps():
        same(run.restore(step), tree_of(step))


def test_managers_share_a_directory(tmp_path: Path) -> None:
    def work(k: int) -> None:
        for step in range(15):
            with dsl.CheckpointManager(tmp_path, keep=2) as run:
                run.save(step, tree_of(step))
                got = run.restore()
                assert (got["w"] == got["step"]).all()

    in_threads(4, work)
    assert all(name.startswith("step-") for name in os.listdir(tmp_path))


def test_only_abandoned_temporary_files_are_removed(tmp_path: Path) -> None:
    abandoned = tmp_path / ".step-0000000001.safetensors.0123456789ab.dsl-tmp"
    others = [tmp_path / name for name in ("notes.tmp", ".hidden", "model.safetensors", "step-1")]
    for path in [abandoned, *others]:
        path.touch()
    with store.replacing(tmp_path / "step-0000000007.safetensors") as file:
        file.write(b"x")
        run = dsl.CheckpointManager(tmp_path)
        assert not abandoned.exists()
        assert os.path.exists(file.name)
        assert all(path.exists() for path in others)
    assert run.steps() == [7]


def test_a_file_removed_before_it_was_locked_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock, made = store.fcntl.flock, []

    def remove_first(file: Any, how: int) -> None:
        made.append(file.name)
        if len(made) == 1:
            os.unlink(file.name)
        flock(file, how)

    monkeypatch.setattr(store.fcntl, "flock", remove_first)
    dsl.save(tmp_path / "a", [1])
    assert len(made) == 2
    assert dsl.restore(tmp_path / "a") == [1]


# -- processes that end ----------------------------------------------------------------------------

KILLED = """
import os, random, signal, sys, time
import numpy as np
import dsl
from dsl.checkpoints import store

directory, mode = sys.argv[1:]
POINTS = ("fsync", "replace", "unlink", "open", "close", "fstat", "listdir")


def tree(step):
    return {"step": step, "w": np.full(3000, float(step)), "parts": [np.full(7, step)] * 5}


def save_from(step, count):
    with dsl.CheckpointManager(directory, keep=2) as run:
        for k in range(step, step + count):
            run.save(k, tree(k))


def die_at(point):
    'Count the calls of the functions above, and die before or after one of them.'
    calls = [0]
    def counted(call):
        def run(*args, **named):
            calls[0] += 1
            if calls[0] == point:
                os.kill(os.getpid(), signal.SIGKILL)
            result = call(*args, **named)
            calls[0] += 1
            if calls[0] == point:
                os.kill(os.getpid(), signal.SIGKILL)
            return result
        return run
    for name in POINTS:
        setattr(os, name, counted(getattr(os, name)))


def child(work):
    pid = os.fork()
    if not pid:
        try:
            work()
        finally:
            os._exit(0)
    return pid


def check(at_least):
    left.extend(name for name in os.listdir(directory) if name.endswith(".dsl-tmp"))
    run = dsl.CheckpointManager(directory, keep=2)
    got = run.restore(like=tree(0))
    expected = tree(got["step"])
    assert run.restored == run.latest() == got["step"] >= at_least, (got["step"], at_least)
    assert all(np.array_equal(a, b) for a, b in zip([got["w"], *got["parts"]], [expected["w"], *expected["parts"]]))
    assert all(name.startswith("step-") for name in os.listdir(directory)), os.listdir(directory)
    return got["step"]


save_from(0, 1)
last, kills, left = 0, 0, []
if mode == "random":
    random.seed(1)
    for _ in range(200):
        pid = child(lambda: save_from(last + 1, 10**6))
        time.sleep(random.uniform(0.001, 0.03))
        os.kill(pid, signal.SIGKILL)
        kills += os.waitpid(pid, 0)[1] == signal.SIGKILL
        last = check(last)
else:
    while True:
        def work():
            die_at(kills + 1)
            save_from(last + 1, 3)
        status = os.waitpid(child(work), 0)[1]
        last = check(last)
        if status != signal.SIGKILL:
            break
        kills += 1
print(kills, last, len(left))
"""


def run_python(code: str, *args: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *args], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_process_killed_at_a_random_moment_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    kills, last, left = map(int, run_python(KILLED, str(tmp_path), "random").split())
    assert kills == 200
    assert last > 10
    assert left > 10


def test_a_process_killed_at_every_step_of_a_save_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    kills, last, left = map(int, run_python(KILLED, str(tmp_path), "every").split())
    assert kills > 30
    assert last > 3
    assert left > 5


def test_a_program_that_ends_waits_for_its_last_save(tmp_path: Path) -> None:
    code = "import sys, dsl, numpy; dsl.CheckpointManager(sys.argv[1]).save(1, [numpy.ones(10**6)])"
    run_python(code, str(tmp_path))
    assert dsl.CheckpointManager(tmp_path).restore()[0].sum() == 10**6


def test_a_temporary_file_of_a_killed_process_is_removed(tmp_path: Path) -> None:
    code = """
import os, signal, sys
from dsl.checkpoints import store
with store.replacing(sys.argv[1] + "/step-0000000001.safetensors") as file:
    print(file.name, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=60
    )
    assert os.listdir(tmp_path) == [os.path.basename(done.stdout.strip())]
    with contextlib.closing(dsl.CheckpointManager(tmp_path)):
        assert os.listdir(tmp_path) == []
