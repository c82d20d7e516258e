"""Files of events and exported graphs: the bytes, what comes back from them, and what TensorFlow makes of them.

The bytes are read here by a decoder of its own, and by TensorBoard and TensorFlow where those are installed.
"""

from __future__ import annotations

import contextlib
import io
import re
import struct
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from random_graphs import graphs

import dsl
from dsl.errors import DslError, NanError, ShapeError, TypeRuleError
from dsl.ir.build import Builder
from dsl.ir.graph import Graph
from dsl.ir.interpret import interpret
from dsl.ir.registry import OPS, Sample
from dsl.ir.text import parse
from dsl.ir.types import BY_NAME, TensorType
from dsl.summary import FileWriter, Histogram, graph_def, graph_text, read
from dsl.summary.checksums import crc32c, crc32c_by_tables
from dsl.summary.histograms import default_limits
from dsl.summary.proto import decode, encode
from dsl.summary.records import masked_crc
from dsl.summary.table import EMITTERS

GOLDEN = Path(__file__).parent / "graphdef"
LARGEST = np.finfo(np.float64).max

COUNT = """
graph @count(%n: i64[], %x: f64[k, 2]) -> (i64[], f64[2]) {
  %zero = const() {value=0} : i64[]
  %one = const() {value=1} : i64[]
  %i = enter(%zero) {frame="w0"} : i64[]
  %m = enter(%n) {frame="w0", invariant} : i64[]
  %o = enter(%one) {frame="w0", invariant} : i64[]
  %j = loop_merge(%i, %next) : i64[]
  %p = less(%j, %m) : bool[]
  %c = loop_cond(%p) : bool[]
  %out, %in = switch(%j, %c) : i64[], i64[]
  %y = add(%in, %o) : i64[]
  %next = next_iteration(%y) : i64[]
  %r = exit(%out) : i64[]
  %s = sum(%x) {axes=(0,)} : f64[2]
  %t = sort(%s) {axis=0, descending=false, stable=true} : f64[2]
  return %r, %t
}
"""


# -- an independent reader of the wire -----------------------------------------------------------------------------


def wire(data: bytes) -> dict[int, list[Any]]:
    """Field number -> what was there: ints, or bytes for everything else."""
    found: dict[int, list[Any]] = {}
    stream = io.BytesIO(data)
    while stream.tell() < len(data):
        key = varint(stream)
        size = {1: 8, 5: 4}.get(key & 7)
        if key & 7 == 0:
            value: Any = varint(stream)
        else:
            value = stream.read(varint(stream) if size is None else size)
        found.setdefault(key >> 3, []).append(value)
    return found


def varint(stream: io.BytesIO) -> int:
    byte = stream.read(1)[0]
    return byte if byte < 128 else byte - 128 + 128 * varint(stream)


def double(data: bytes) -> float:
    return float(np.frombuffer(data, "<f8")[0])


def events(path: Path) -> Iterator[dict[int, list[Any]]]:
    data = path.read_bytes()
    while data:
        (size,) = struct.unpack("<Q", data[:8])
        assert struct.unpack("<I", data[8:12])[0] == masked_crc(data[:8])
        content, data = data[12 : 12 + size], data[12 + size :]
        assert struct.unpack("<I", data[:4])[0] == masked_crc(content)
        data = data[4:]
        yield wire(content)


# -- checksums and records -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("checksum", [crc32c, crc32c_by_tables])
@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0),
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),  # these four are in RFC 3720
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(reversed(range(32))), 0x113FDB5C),
    ],
)
def test_checksums_are_those_of_the_standard(
    checksum: Callable[[bytes], int], data: bytes, expected: int
) -> None:
    assert checksum(data) == expected


@pytest.mark.parametrize("size", [2047, 2048, 2049, 70_001, (1 << 22) + 2049])
def test_checksums_of_many_bytes_are_those_of_one_after_the_other(size: int) -> None:
    from dsl.summary.checksums import _follow

    data = np.random.default_rng(size).bytes(size)
    assert crc32c_by_tables(data) == _follow(0xFFFFFFFF, data) ^ 0xFFFFFFFF


def test_an_event_is_framed_and_encoded_as_tensorflow_does(tmp_path: Path) -> None:
    with FileWriter(tmp_path) as writer:
        writer.scalar("loss", 0.25, step=300)
    (path,) = tmp_path.iterdir()
    assert path == writer.path
    assert path.name.startswith("events.out.tfevents.")
    version, loss = events(path)
    assert version[3] == [b"brain.Event:2"]
    assert 1.6e9 < double(version[1][0]) <= double(loss[1][0])
    assert loss[2] == [300]
    (value,) = wire(loss[5][0])[1]
    assert wire(value) == {1: [b"loss"], 2: [struct.pack("<f", 0.25)]}


def test_negative_and_large_numbers_survive() -> None:
    for size in (-1, 0, 127, 128, 2**62, -(2**63)):
        data = encode("Dim", {"size": size})
        assert decode("Dim", data) == {"size": size}
        assert wire(data)[1] == [size % 2**64]


def test_repeated_numbers_are_read_packed_or_not() -> None:
    packed = encode("AttrList", {"i": [1, 300, -1]})
    loose = b"".join(b"\x18" + encode("Dim", {"size": k})[1:] for k in (1, 300, -1))
    assert decode("AttrList", packed) == decode("AttrList", loose) == {"i": [1, 300, -1]}


# -- writing and reading -------------------------------------------------------------------------------------------


def test_what_is_written_is_read(tmp_path: Path) -> None:
    with dsl.summary.FileWriter(tmp_path / "new" / "run") as writer:
        for step in range(3):
            writer.scalar("loss", np.float64(1.5 - step), step)
        writer.scalar("one", np.array([[7]]), -1)
        writer.scalar("big", 1e300, 2**40)
        writer.scalar("nan", np.nan, 0)
        writer.text("note", "größer *als* nichts", 4)
        writer.histogram("h", np.arange(10), 5)
    found = list(read(tmp_path / "new" / "run"))
    assert found[:5] == [
        (0, "loss", 1.5), (1, "loss", 0.5), (2, "loss", -0.5), (-1, "one", 7.0), (2**40, "big", np.inf),
    ]  # fmt: skip
    assert np.isnan(found[5][2])
    assert found[6] == (4, "note", "größer *als* nichts")
    step, tag, histogram = found[7]
    assert (step, tag, histogram.num, histogram.sum) == (5, "h", 10.0, 45.0)
    assert next(iter(read(writer.path))) == (0, "loss", 1.5)


def test_what_is_flushed_is_seen_while_the_writer_works(tmp_path: Path) -> None:
    writer = FileWriter(tmp_path)
    writer.scalar("x", 1.0, 0)
    assert list(read(tmp_path)) == []
    writer.flush()
    assert list(read(tmp_path)) == [(0, "x", 1.0)]
    writer.close()
    writer.close()
    with pytest.raises(DslError, match="is closed"):
        writer.scalar("x", 2.0, 1)


def test_events_are_flushed_after_a_while(tmp_path: Path) -> None:
    with FileWriter(tmp_path, flush_secs=0.0) as writer:
        writer.scalar("x", 1.0, 0)
        assert list(read(tmp_path)) == [(0, "x", 1.0)]


def test_an_unfinished_record_is_left_out_and_a_damaged_one_raises(tmp_path: Path) -> None:
    with FileWriter(tmp_path) as writer:
        for step in range(3):
            writer.scalar("x", 1.0, step)
    data = bytearray(writer.path.read_bytes())
    for cut in range(1, 16):
        (tmp_path / "cut.tfevents").write_bytes(data[:-cut])
        assert [step for step, *_ in read(tmp_path / "cut.tfevents")] == [0, 1]
    data[-10] ^= 1
    (tmp_path / "bad.tfevents").write_bytes(data)
    with pytest.raises(DslError, match=r"bad.tfevents: the record at byte \d+ is damaged"):
        list(read(tmp_path / "bad.tfevents"))


def test_a_directory_without_events_is_named(tmp_path: Path) -> None:
    with pytest.raises(DslError, match="has no file of events"):
        list(read(tmp_path))


def test_writers_of_one_second_have_files_of_their_own(tmp_path: Path) -> None:
    writers = [FileWriter(tmp_path) for _ in range(4)]
    for step, writer in enumerate(writers):
        writer.scalar("x", 1.0, step)
        writer.close()
    assert len({writer.path for writer in writers}) == 4
    assert sorted(step for step, *_ in read(tmp_path)) == [0, 1, 2, 3]


def test_threads_share_a_writer(tmp_path: Path) -> None:
    writer = FileWriter(tmp_path, flush_secs=0.001)

    def work(name: str) -> None:
        for step in range(300):
            writer.scalar(name, step, step)

    threads = [threading.Thread(target=work, args=(f"t{k}",)) for k in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.close()
    found: dict[str, list[int]] = {}
    for step, tag, value in read(tmp_path):
        assert step == value
        found.setdefault(tag, []).append(step)
    assert found == {f"t{k}": list(range(300)) for k in range(6)}


def test_bad_values_are_refused_with_their_tag(tmp_path: Path) -> None:
    with FileWriter(tmp_path) as writer:
        with pytest.raises(ShapeError, match=r"the scalar 'x' wants one real number, got .*\(2,\)"):
            writer.scalar("x", np.zeros(2), 0)
        with pytest.raises(TypeRuleError, match="the text 'x' wants a string, got int"):
            writer.text("x", 3, 0)  # type: ignore[arg-type]
        with pytest.raises(NanError, match="the histogram 'h' has no bucket for NaN"):
            writer.histogram("h", [1.0, np.nan], 0)
        with pytest.raises(TypeRuleError, match="the histogram 'h' wants real numbers"):
            writer.histogram("h", [1j], 0)
        with pytest.raises(ShapeError, match="at least one bin"):
            writer.histogram("h", [1.0], 0, bins=0)
        with pytest.raises(ShapeError, match="growing"):
            writer.histogram("h", [1.0], 0, bins=[1.0, 0.0])
    assert list(read(tmp_path)) == []


# -- histograms ----------------------------------------------------------------------------------------------------


def written(tmp_path: Path, values: Any, **options: Any) -> Histogram:
    with FileWriter(tmp_path) as writer:
        writer.histogram("h", values, 0, **options)
    ((_, _, found),) = read(writer.path)
    assert isinstance(found, Histogram)
    return found


def test_the_limits_grow_by_a_tenth_on_both_sides_of_zero() -> None:
    limits = default_limits()
    middle = len(limits) // 2
    assert limits[middle] == 0.0
    assert limits[middle + 1] == 1e-12
    np.testing.assert_allclose(limits[middle + 2 : -1] / limits[middle + 1 : -2], 1.1)
    assert limits[-2] < 1e20 < limits[-2] * 1.1
    assert limits[-1] == LARGEST
    np.testing.assert_array_equal(limits, -limits[::-1])


def test_counts_and_moments_of_a_histogram(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=1000)
    found = written(tmp_path, x.reshape(10, 100))
    assert (found.min, found.max, found.num) == (x.min(), x.max(), 1000)
    np.testing.assert_allclose([found.sum, found.sum_squares], [x.sum(), (x * x).sum()])
    assert found.counts.sum() == 1000
    below = -np.inf
    for limit, count in zip(found.limits, found.counts):
        assert count == ((below <= x) & (x < limit)).sum()
        below = limit
    empty = found.counts == 0
    assert not (empty[1:] & empty[:-1]).any()


def test_a_value_on_a_limit_is_above_it(tmp_path: Path) -> None:
    found = written(tmp_path, [0.0, 0.0, 0.0])
    at = np.flatnonzero(found.counts)
    assert (found.limits[at], found.counts[at]) == (1e-12, 3.0)
    assert found.limits[at - 1] == 0.0


def test_bins_may_be_given(tmp_path: Path) -> None:
    found = written(tmp_path, np.arange(11.0), bins=5)
    np.testing.assert_allclose(found.limits, [2, 4, 6, 8, 10])
    np.testing.assert_array_equal(found.counts, [2, 2, 2, 2, 3])
    found = written(tmp_path, np.arange(11.0), bins=[0.0, 3.0, 5.5])
    np.testing.assert_array_equal(found.limits, [0, 3, 5.5, LARGEST])
    np.testing.assert_array_equal(found.counts, [0, 3, 3, 5])


def test_a_histogram_of_nothing_or_of_one_value(tmp_path: Path) -> None:
    for bins in (None, 3):
        nothing = written(tmp_path, np.zeros(0), bins=bins)
        assert (nothing.num, nothing.counts.sum(), len(nothing.counts)) == (0, 0, 1)
        same = written(tmp_path, np.full(4, 2.5, np.float32), bins=bins)
        assert (same.min, same.max, same.counts.sum()) == (2.5, 2.5, 4)


# -- graphs --------------------------------------------------------------------------------------------------------


def settle(x: np.ndarray, w: np.ndarray) -> Any:
    h = np.tanh(x @ w)
    while np.abs(h).max() > 0.1:
        h[1:-1] = 0.5 * (h[2:] + h[:-2])
        if h[0, 0] > 3:
            h = h + 1.0
        else:
            h = h * 0.5
    return h.sum()


X = np.random.default_rng(1).normal(size=(6, 6))
W = np.random.default_rng(2).normal(size=(6, 6))


def nodes_of(data: bytes) -> dict[str, dict[str, Any]]:
    """Name -> node, its attributes as a dict; read by the decoder above."""
    found: dict[str, dict[str, Any]] = {}
    for node in map(wire, wire(data)[1]):
        name, op = node[1][0].decode(), node[2][0].decode()
        attrs = {wire(a)[1][0].decode(): wire(wire(a)[2][0]) for a in node.get(5, ())}
        inputs = [item.decode() for item in node.get(3, ())]
        assert name not in found
        found[name] = {"op": op, "inputs": inputs, "attrs": attrs}
    return found


def check_structure(data: bytes) -> dict[str, dict[str, Any]]:
    """Every input exists, data before controls, and loops are as TensorFlow wants them."""
    nodes = nodes_of(data)
    for node in nodes.values():
        plain = [item for item in node["inputs"] if not item.startswith("^")]
        assert node["inputs"][: len(plain)] == plain
        for item in node["inputs"]:
            assert item.removeprefix("^").partition(":")[0] in nodes
        if node["op"] == "Merge":
            assert node["attrs"]["N"][3] == [len(plain)]
    frame = frames(nodes)
    for name, node in nodes.items():
        places = {frame[source(item)] for item in node["inputs"]}
        assert node["op"] == "Merge" or len(places) <= 1, (name, places)
    check_loops(nodes, frame)
    return nodes


def source(item: str) -> str:
    return item.removeprefix("^").partition(":")[0]


def frames(nodes: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Name -> the frame of its outputs, by following edges forward; an `exit` is in the parent of its frame."""
    found, parents = dict.fromkeys((n for n in nodes if not nodes[n]["inputs"]), ""), {"": ""}
    while len(found) < len(nodes):
        before = len(found)
        for name, node in nodes.items():
            known = [found[source(item)] for item in node["inputs"] if source(item) in found]
            wanted = 1 if node["op"] == "Merge" else len(node["inputs"])
            if name in found or len(known) < wanted:
                continue
            if node["op"] == "Enter":
                found[name] = node["attrs"]["frame_name"][2][0].decode()
                assert parents.setdefault(found[name], known[0]) == known[0]
            else:
                found[name] = parents[known[0]] if node["op"] == "Exit" else known[0]
        assert len(found) > before
    return found


def check_loops(nodes: dict[str, dict[str, Any]], frame: dict[str, str]) -> None:
    conditions = Counter(frame[name] for name, node in nodes.items() if node["op"] == "LoopCond")
    assert set(conditions) == set(frame.values()) - {""}
    assert set(conditions.values()) <= {1}
    backs = [n for n, node in nodes.items() if node["op"] == "NextIteration"]
    for name, node in nodes.items():
        ops = [nodes[source(item)]["op"] for item in node["inputs"]]
        if "NextIteration" in ops:
            assert (node["op"], ops) == ("Merge", ["Enter", "NextIteration"]), name
            backs.remove(source(node["inputs"][1]))
        if node["op"] == "Exit":
            assert ops[0] == "Switch"
            assert ":" not in node["inputs"][0]  # output 0, where the predicate is false
    assert backs == []


def test_a_loop_and_a_branch_are_spelled_as_tensorflow_does() -> None:
    nodes = check_structure(graph_def(settle, X, W))
    count = Counter(node["op"] for node in nodes.values())
    assert count["LoopCond"] == count["NextIteration"] == count["Exit"] == 1
    assert count["Placeholder"] == 2
    assert not any(op.startswith("Dsl") for op in count)
    assert nodes["output_0"]["op"] == "Identity"
    assert nodes["matmul"]["inputs"] == ["x", "w"]
    assert nodes["while0/loop_merge"]["inputs"] == ["while0/enter", "while0/body/next_iteration"]
    assert nodes["while0/body/cond0/then/add"]["op"] == "AddV2"
    assert nodes["while0/body/cond0/else/multiply"]["op"] == "Mul"
    assert nodes["while0/body/cond0/merge"]["inputs"] == [
        "while0/body/cond0/else/multiply",
        "while0/body/cond0/then/add",
    ]
    (place,) = nodes["while0/body/cond0/then/add"]["attrs"]["_source"][2]
    assert place.endswith(b": h = h + 1.0")
    assert place.startswith(b"test_summary.py:")


def test_constants_in_a_loop_wait_for_something_in_it() -> None:
    nodes = check_structure(graph_def(settle, X, W))
    inside = [n for n in nodes if n.startswith("while0/") and nodes[n]["op"] == "Const"]
    assert len(inside) > 5
    assert all(nodes[name]["inputs"][0].startswith("^") for name in inside)


def test_all_sources_of_a_graph_give_the_same_bytes(tmp_path: Path) -> None:
    compiled = dsl.jit(settle)
    lowered = compiled.lower(X, W)
    data = graph_def(settle, X, W)
    assert data == graph_def(compiled, X, W) == graph_def(lowered)
    assert data == graph_def(lowered.graph()) == graph_def(lowered.graph("lowered"))
    with FileWriter(tmp_path) as writer:
        writer.graph(settle, X, W)
    assert list(read(tmp_path)) == [(0, "graph", data)]


def test_symbolic_sizes_are_unknown_and_found_at_run_time() -> None:
    lowered = dsl.jit(settle, dynamic=True).lower(X, W)
    nodes = check_structure(graph_def(lowered))
    unknown = wire(nodes["x"]["attrs"]["shape"][7][0])[2]
    assert [wire(dim)[1] for dim in unknown] == [[2**64 - 1], [2**64 - 1]]
    assert "Shape" in {node["op"] for node in nodes.values()}


def test_results_wait_for_effects_and_keep_the_message() -> None:
    def check(x: Any) -> Any:
        assert x > 0, "not positive"
        print("x is", x)
        return x

    nodes = check_structure(graph_def(check, 1.0))
    assert nodes["assert"]["op"] == "Assert"
    assert nodes["print"]["op"] == "PrintV2"
    assert {"^assert", "^print"} <= set(nodes["output_0"]["inputs"])
    assert b"not positive" in graph_def(check, 1.0)


def test_names_are_legal_and_unlike_folders() -> None:
    def choose(cond0: Any, tree: Any) -> Any:
        return np.sin(tree["a b"]) if cond0 > 0 else -tree["a b"]

    nodes = check_structure(graph_def(choose, 1.0, {"a b": 2.0}))
    folders = {
        "/".join(name.split("/")[:k]) for name in nodes for k in range(1, name.count("/") + 1)
    }
    assert "cond0" in folders
    params = [name for name, node in nodes.items() if node["op"] == "Placeholder"]
    assert params[0] == "cond0_1"
    assert not any(re.search(r"[^A-Za-z0-9_./-]", name) for name in nodes)


def test_ops_that_tensorflow_has_not_keep_their_attributes() -> None:
    nodes = check_structure(graph_def(parse(COUNT)))
    sort = nodes["sort"]
    assert sort["op"] == "DslSort"
    assert {key: sort["attrs"][key] for key in ("axis", "stable", "descending")} == {
        "axis": {3: [0]}, "stable": {5: [1]}, "descending": {5: [0]},
    }  # fmt: skip


def test_the_text_of_a_small_graph(bless: bool) -> None:
    path = GOLDEN / "count.pbtxt"
    text = graph_text(parse(COUNT))
    if bless:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@settings(max_examples=40, deadline=None)
@given(graphs())
def test_random_graphs_are_well_formed(pair: tuple[Graph, list[Any]]) -> None:
    nodes = check_structure(graph_def(pair[0]))
    assert not any(node["op"].startswith("Dsl") for node in nodes.values())


def test_the_table_names_ops_that_exist() -> None:
    assert set(EMITTERS) <= set(OPS)


# -- TensorBoard ---------------------------------------------------------------------------------------------------


def test_tensorboard_reads_everything(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = "tensorboard.backend.event_processing.plugin_event_accumulator"
        accumulator = pytest.importorskip(module)
        with FileWriter(tmp_path) as writer:
            writer.graph(settle, X, W)
            for step in range(5):
                writer.scalar("loss", 1.0 / (step + 1), step)
            writer.histogram("weights", X, 3)
            writer.text("note", "hello", 2)
        found = accumulator.EventAccumulator(str(tmp_path), size_guidance={"tensors": 0})
        found.Reload()
        losses = [(e.step, float(value(e.tensor_proto))) for e in found.Tensors("loss")]
        (histogram,) = found.Tensors("weights")
        (note,) = found.Tensors("note")
        nodes = {node.name: node.op for node in found.Graph().node}
    np.testing.assert_allclose(losses, [(k, 1 / (k + 1)) for k in range(5)], rtol=1e-6)
    left, right, count = value(histogram.tensor_proto).T
    assert histogram.step == 3
    assert count.sum() == X.size
    np.testing.assert_allclose([left.max(), right.max()], [left[-1], X.max()], rtol=1e-6)
    assert value(note.tensor_proto).item() == b"hello"
    assert nodes["while0/loop_merge"] == "Merge"


def value(tensor: Any) -> np.ndarray:
    from tensorboard.util import tensor_util

    return np.asarray(tensor_util.make_ndarray(tensor))


# -- TensorFlow ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tensorflow() -> Iterator[Any]:
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")
        patch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")
        yield pytest.importorskip("tensorflow")


def run_in(tf: Any, graph: Graph, args: list[Any]) -> list[np.ndarray]:
    message = tf.compat.v1.GraphDef.FromString(graph_def(graph))
    assert [node.name for node in message.node if node.op.startswith("Dsl")] == []
    feeds = [f"{node.name}:0" for node in message.node if node.op == "Placeholder"]
    with tf.Graph().as_default() as imported:
        tf.import_graph_def(message, name="")
    options = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=1)
    limit = tf.compat.v1.RunOptions(timeout_in_ms=20_000)
    fetches = [f"output_{k}:0" for k in range(len(graph.results))]
    with tf.compat.v1.Session(graph=imported, config=options) as session:
        return [np.asarray(y) for y in session.run(fetches, dict(zip(feeds, args)), limit)]


def check_in(tf: Any, graph: Graph, args: list[Any]) -> None:
    with contextlib.redirect_stdout(io.StringIO()), np.errstate(all="ignore"):
        expected = interpret(graph, args)
    for got, wanted in zip(run_in(tf, graph, args), expected, strict=True):
        wanted = np.asarray(wanted)
        assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
        tolerance = 1e-4 if wanted.dtype in (np.float32, np.complex64) else 1e-11
        np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=tolerance)


def nested(x: np.ndarray, n: int) -> Any:
    t = 0.0
    for i in range(n):
        y = x * i
        while y.sum() > 1.0:
            y = y * 0.5
            t = t + 1.0
        x[i % 3] = t
    return x, t


def untaken(x: np.ndarray, p: float) -> Any:
    if p > 0:
        while x.sum() < 100.0:
            x = x * 2.0 + 1.0
    else:
        x = x - 1.0
    return x


def repeated_sine(x: np.ndarray, n: int) -> Any:
    i = 0
    while i < n:
        x = np.sin(x) * 1.5
        i += 1
    return x.sum()


def recurrent(xs: np.ndarray, w: np.ndarray, u: np.ndarray) -> Any:
    h = np.zeros(w.shape[0])
    for x in xs:
        h = np.tanh(w @ h + u @ x)
    return h


def shapes(x: np.ndarray) -> Any:
    out = x.copy()
    out[::-2] = x[1::2] * 2
    out[2] = 7
    parts = np.concatenate([x, out]), np.pad(x, 2), np.where(x > 2, x, -x), np.cumsum(x)
    return *parts, out[::-1] * 1.0, x.argmax(), x[np.array([0, -1, 2])], np.arange(len(x)) * 2.0


def softmax(x: np.ndarray) -> Any:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


PROGRAMS = [
    (settle, (X, W)),
    (nested, (np.arange(1.0, 4.0), 5)),
    (untaken, (np.ones(3), 1.0)),
    (untaken, (np.ones(3), -1.0)),
    (repeated_sine, (np.ones(3), 0)),
    (repeated_sine, (np.ones(3), 50)),
    (dsl.grad(repeated_sine), (np.ones(3), 100)),
    (recurrent, (X[:, :3], X[:4, :4], X[:4, :3])),
    (shapes, (np.arange(6.0),)),
    (softmax, (X,)),
]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("k", range(len(PROGRAMS)))
def test_tensorflow_runs_programs(tensorflow: Any, k: int, dynamic: bool) -> None:
    function, args = PROGRAMS[k]
    graph = dsl.jit(function, dynamic=dynamic).lower(*args).graph()
    check_in(tensorflow, graph, [np.array(arg) for arg in args])


@settings(max_examples=25, deadline=None)
@given(pair=graphs())
def test_tensorflow_runs_random_graphs(tensorflow: Any, pair: tuple[Graph, list[Any]]) -> None:
    check_in(tensorflow, *pair)


DOUBLE = BY_NAME["f64"]
SEVERAL_ANSWERS = ("eigh",)


def of_doubles(name: str) -> list[Sample]:
    """A few samples of an op whose first input is of float64."""
    found = OPS[name].samples(np.random.default_rng(0))
    return [s for s in found if s.inputs and np.asarray(s.inputs[0]).dtype == DOUBLE][:6]


def test_tensorflow_computes_what_each_op_means(tensorflow: Any) -> None:
    wrong, count = {}, 0
    for name in sorted(set(EMITTERS) - set(SEVERAL_ANSWERS)):
        for sample in of_doubles(name):
            try:
                count += check_sample(tensorflow, name, sample)
            except Exception as error:  # all that fail are listed
                wrong[name] = f"{sample}: {error}"
    assert wrong == {}
    assert count > 150


def check_sample(tf: Any, name: str, sample: Sample) -> bool:
    """Compare, unless the table has nothing for these attributes."""
    builder = Builder("f")
    args = [np.asarray(x) for x in sample.inputs]
    params = [builder.param(TensorType(x.dtype, x.shape)) for x in args]
    graph = builder.finish(builder.node(name, params, dict(sample.attrs)).outputs)
    if b"Dsl" in graph_def(graph):
        return False
    check_in(tf, graph, args)
    return True


def test_tensorflow_makes_the_same_histogram(tensorflow: Any, tmp_path: Path) -> None:
    x = np.random.default_rng(2).normal(size=500) * 3
    tf = tensorflow
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        data = session.run(tf.compat.v1.summary.histogram("h", tf.constant(x)))
    other = tf.compat.v1.Summary.FromString(data).value[0].histo
    found = written(tmp_path, x)
    np.testing.assert_array_equal(found.limits, other.bucket_limit)
    np.testing.assert_array_equal(found.counts, other.bucket)
    moments = [found.min, found.max, found.num, found.sum, found.sum_squares]
    np.testing.assert_allclose(
        moments, [other.min, other.max, other.num, other.sum, other.sum_squares]
    )


def test_tensorflow_reads_the_text_form(tensorflow: Any) -> None:
    text_format = pytest.importorskip("google.protobuf.text_format")
    message = text_format.Parse(graph_text(settle, X, W), tensorflow.compat.v1.GraphDef())
    assert message == tensorflow.compat.v1.GraphDef.FromString(graph_def(settle, X, W))
