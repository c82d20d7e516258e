"""LLVM IR becomes code in this process, once; its objects are kept on disk, and nothing on disk can do harm."""

from __future__ import annotations

import ctypes
import doctest
import gc
import math
import mmap
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from dsl.codegen.cpu import cache, elf, jit
from dsl.codegen.cpu.cache import Store
from dsl.config import OPTIONS, config
from dsl.errors import ConfigError, InternalError

needs_elf = pytest.mark.skipif(not elf.runs_here(), reason="for the loader of x86-64 Linux")

EXTERNALS = """
@table = internal constant [4 x double] [double 1.0, double 2.0, double 3.0, double 4.0]
@count = internal global i64 40
@zeros = internal global [1000 x i64] zeroinitializer, align 64
@shared = global i64 7
@pointers = internal global [2 x ptr] [ptr @next, ptr @count]

declare double @sin(double)
declare double @from_python(double)
declare ptr @memcpy(ptr, ptr, i64)

define double @mixed(double %x, i64 %k) {
  %place = getelementptr double, ptr @table, i64 %k
  %entry = load double, ptr %place
  %s = call double @sin(double %x)
  %p = call double @from_python(double %s)
  %sum = fadd double %p, %entry
  ret double %sum
}
define i64 @next() {
  %old = load i64, ptr @count
  %new = add i64 %old, 1
  store i64 %new, ptr @count
  ret i64 %new
}
define i64 @zero(i64 %k) {
  %place = getelementptr i64, ptr @zeros, i64 %k
  %entry = load i64, ptr %place
  store i64 9, ptr %place
  ret i64 %entry
}
define ptr @pointer(i64 %k) {
  %place = getelementptr ptr, ptr @pointers, i64 %k
  %entry = load ptr, ptr %place
  ret ptr %entry
}
define void @set_pointer(i64 %k, ptr %value) {
  %place = getelementptr ptr, ptr @pointers, i64 %k
  store ptr %value, ptr %place
  ret void
}
define ptr @sine() {
  ret ptr @sin
}
define void @weigh(ptr noalias %out, ptr noalias %in) {
  %x = load <8 x float>, ptr %in, align 4
  %y = fmul <8 x float> %x, <float 1.0, float 2.0, float 3.0, float 4.0, float 5.0, float 6.0, float 7.0, float 8.0>
  store <8 x float> %y, ptr %out, align 4
  ret void
}
define void @copy(ptr %out, ptr %in, i64 %n) {
  %unused = call ptr @memcpy(ptr %out, ptr %in, i64 %n)
  ret void
}
define i64 @jump(i64 %x) {
  switch i64 %x, label %other [ i64 0, label %a
    i64 1, label %b
    i64 2, label %c
    i64 3, label %d
    i64 4, label %e ]
a:
  %p = call i64 @next()
  ret i64 %p
b:
  ret i64 27
c:
  %q = mul i64 %x, %x
  ret i64 %q
d:
  store i64 0, ptr @count
  ret i64 555
e:
  ret i64 -1
other:
  ret i64 0
}
"""

LOOP = """
define void @scale(ptr noalias %out, ptr noalias %in, i64 %n) {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %j, %loop ]
  %p = getelementptr float, ptr %in, i64 %i
  %x = load float, ptr %p
  %y = fmul float %x, 3.0
  %q = getelementptr float, ptr %out, i64 %i
  store float %y, ptr %q
  %j = add i64 %i, 1
  %more = icmp slt i64 %j, %n
  br i1 %more, label %loop, label %end
end:
  ret void
}
"""


def adder(number: int) -> str:
    """Return a module with a function `f` that adds a number."""
    return f"define i64 @f(i64 %x) {{\n  %y = add i64 %x, {number}\n  ret i64 %y\n}}\n"


def call(code: jit.Code, symbol: str, *args: object, result: type = ctypes.c_int64) -> object:
    """Call a function of compiled code; Python floats go as doubles, ints as 64-bit integers."""
    kinds = [ctypes.c_double if isinstance(a, float) else ctypes.c_int64 for a in args]
    return ctypes.CFUNCTYPE(result, *kinds)(code.address(symbol))(*args)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache directory, which is in force for this process and those it starts."""
    for option in OPTIONS.values():
        monkeypatch.delenv(option.env, raising=False)
    directory = tmp_path / "cache"
    monkeypatch.setenv("DSL_CACHE_DIR", str(directory))
    config.reset()
    jit._live.clear()
    yield directory
    config.reset()
    jit._live.clear()


@pytest.fixture
def logged(capsys: pytest.CaptureFixture[str]) -> Callable[[], list[str]]:
    """A function that returns the lines of the topic `cache` since it was last called."""
    config.update(logs="cache")
    return lambda: capsys.readouterr().err.splitlines()


class Difference:
    """What the counts of `jit.stats()` grew by since this was made."""

    def __init__(self) -> None:
        self.before = jit.stats()

    def __call__(self) -> dict[str, int]:
        now = jit.stats()._asdict()
        grown = {name: now[name] - getattr(self.before, name) for name in now}
        return {name: number for name, number in grown.items() if number}


# --- Loading -------------------------------------------------------------------------------------


def test_the_same_text_is_linked_once_while_it_is_in_use() -> None:
    grown = Difference()
    code = jit.load(adder(1))
    assert call(code, "f", 41) == 42
    assert jit.load(adder(1)) is code
    assert grown() == {"llvm_compiles": 1, "memory_hits": 1, "disk_misses": 1}
    assert not code.from_cache
    assert set(code.times) == set(jit.PHASES)
    assert all(code.times[phase] > 0 for phase in ("parse", "optimize", "codegen", "link"))


def test_code_that_went_away_comes_back_from_disk_without_a_compile() -> None:
    jit.load(adder(2))
    gc.collect()
    grown = Difference()
    code = jit.load(adder(2))
    assert call(code, "f", 40) == 42
    assert grown() == {"disk_hits": 1}
    assert code.from_cache
    assert [phase for phase, seconds in code.times.items() if seconds] == ["link"]


def test_level_and_flags_make_different_code() -> None:
    codes = [
        jit.load(LOOP),
        jit.load(LOOP, level=1),
        jit.load(LOOP, flags=("no-vectorize",)),
        jit.load(LOOP, flags=("no-vectorize", "no-unroll", "no-slp", "no-interleave")),
    ]
    assert len(set(codes)) == 4
    for code in codes:
        numbers, out = (ctypes.c_float * 37)(*range(37)), (ctypes.c_float * 37)()
        call(code, "scale", ctypes.addressof(out), ctypes.addressof(numbers), 37, result=None)
        assert list(out) == [3.0 * i for i in range(37)]


@needs_elf
def test_a_cpu_feature_can_be_switched_off() -> None:
    assert jit.load(LOOP, flags=("-avx512f", "-avx"))
    assert b"\xc5" in jit._compile(LOOP, 3, (), dict.fromkeys(jit.PHASES, 0.0))
    with pytest.raises(
        InternalError, match="flag 'fast': expected a CPU feature with its sign, or"
    ):
        jit.load(LOOP, flags=("fast",))
    with pytest.raises(InternalError, match="level 4: expected 0, 1, 2 or 3"):
        jit.load(LOOP, level=4)


def test_code_names_what_it_defines() -> None:
    code = jit.load(adder(3))
    with pytest.raises(InternalError, match=r"^compiled code defines no 'g'; there are: f$"):
        code.address("g")


def test_llvmlites_empty_targets_are_replaced() -> None:
    header = '; ModuleID = "m"\ntarget triple = "unknown-unknown-unknown"\ntarget datalayout = ""\n'
    assert call(jit.load(header + adder(4)), "f", 1) == 5


PLUS_ONE = "declare i64 @step(i64)\ndefine i64 @run(i64 %x) {\n  %y = call i64 @step(i64 %x)\n  ret i64 %y\n}"
STEP = (
    "define linkonce_odr i64 @step(i64 %x) alwaysinline {{\n  %y = add i64 %x, {}\n  ret i64 %y\n}}"
)


def test_linked_modules_are_inlined_and_part_of_the_key() -> None:
    for number in (1, 7):
        code = jit.load(PLUS_ONE, link=(STEP.format(number),))
        assert (
            ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(code.address("run"))(40) == 40 + number
        )
    text = jit.optimized_text(PLUS_ONE, link=(STEP.format(1),))
    assert "@step" not in text
    assert "@step" not in jit.assembly(PLUS_ONE, link=(STEP.format(1),))
    with pytest.raises(InternalError, match="LLVM refuses a module"):
        jit.load(PLUS_ONE, link=("define i64 @step(",))


def test_optimized_text_and_assembly() -> None:
    assert re.search(r"load <\d+ x float>", jit.optimized_text(LOOP))
    assert "scale:" in jit.assembly(LOOP)
    assert "load <" not in jit.optimized_text(LOOP, level=0)


@needs_elf
@pytest.mark.skipif(
    elf.runs_here() and " avx512f " not in Path("/proc/cpuinfo").read_text(),
    reason="needs AVX-512",
)
def test_vectors_have_512_bits_where_the_cpu_has_them() -> None:
    assert "zmm" in jit.assembly(LOOP)


def test_threads_that_want_the_same_text_share_one_compile() -> None:
    grown, codes = Difference(), []
    start = threading.Barrier(8)

    def run() -> None:
        start.wait()
        codes.append(jit.load(LOOP.replace("3.0", "5.0")))

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(codes)) == 1
    assert len(codes) == 8
    assert grown()["llvm_compiles"] == 1


@pytest.mark.parametrize("module", [cache, jit])
def test_examples_in_docstrings(module: ModuleType) -> None:
    assert doctest.testmod(module).failed == 0


# --- Linking -------------------------------------------------------------------------------------


@pytest.fixture(params=["own", "llvm"])
def linker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both linkers in turn: the loader of `elf`, and LLVM's, which other platforms use."""
    if request.param == "own" and not elf.runs_here():
        pytest.skip("for the loader of x86-64 Linux")
    jit._key("", 3, ())  # so that the host is not looked at while `elf` says that it is another
    monkeypatch.setattr(elf, "runs_here", lambda: request.param == "own")
    return request.param


@ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)
def double_it(x: float) -> float:
    return 2 * x


def address_of(function: object) -> int:
    address = ctypes.cast(function, ctypes.c_void_p).value  # type: ignore[arg-type]
    assert address is not None
    return address


def test_externals_tables_variables_and_jumps(linker: str) -> None:
    jit.define("from_python", address_of(double_it))
    code = jit.load(EXTERNALS)
    mixed = call(code, "mixed", 0.5, 3, result=ctypes.c_double)
    assert mixed == pytest.approx(2 * math.sin(0.5) + 4, rel=1e-15)
    assert [call(code, "jump", k) for k in range(6)] == [41, 27, 4, 555, -1, 0]
    assert call(code, "next") == 1
    assert [call(code, "zero", 999), call(code, "zero", 999)] == [0, 9]
    assert call(code, "pointer", 0) == code.address("next")
    call(code, "set_pointer", 0, 77, result=None)
    assert call(code, "pointer", 0) == 77
    sine = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(call(code, "sine"))
    assert sine(1.0) == pytest.approx(math.sin(1.0), rel=1e-15)

    numbers, out = (ctypes.c_float * 8)(*[1.0] * 8), (ctypes.c_float * 8)()
    call(code, "weigh", ctypes.addressof(out), ctypes.addressof(numbers), result=None)
    assert list(out) == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
    call(code, "copy", ctypes.addressof(out), ctypes.addressof(numbers), 16, result=None)
    assert list(out) == [1.0, 1.0, 1.0, 1.0, 5.0, 6.0, 7.0, 8.0]


def test_two_copies_of_a_module_share_no_variables(linker: str) -> None:
    jit.define("from_python", address_of(double_it))
    first, second = jit.load(EXTERNALS), jit.load(EXTERNALS, level=2)
    assert [call(first, "next"), call(first, "next"), call(second, "next")] == [41, 42, 41]


CALLS_FAR = (
    "declare i64 @far(i64)\ndefine i64 @f(i64 %x) {\n  %y = call i64 @far(i64 %x)\n  ret i64 %y\n}"
)


@needs_elf
def test_calls_reach_any_distance(linker: str) -> None:
    protection, kind = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    far = elf._c().mmap(0x10_0000_0000, mmap.PAGESIZE, protection, kind, -1, 0)
    plus_1 = b"\x48\x8d\x47\x01\xc3"  # lea 1(%rdi), %rax; ret
    ctypes.memmove(far, plus_1, len(plus_1))
    elf._protect(far, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_EXEC)
    jit.define("far", far)
    code = jit.load(CALLS_FAR)
    distance, answer = abs(code.address("f") - far), call(code, "f", 41)
    elf._c().munmap(far, mmap.PAGESIZE)
    assert distance > 2**32
    assert answer == 42


def test_a_name_that_is_defined_again_is_found_by_later_loads(linker: str) -> None:
    one, two = jit.load(adder(1)), jit.load(adder(2))
    jit.define("far", one.address("f"))
    before = jit.load(CALLS_FAR)
    jit.define("far", two.address("f"))
    after = jit.load(CALLS_FAR)
    assert [call(before, "f", 0), call(after, "f", 0)] == [1, 2]
    assert after.from_cache


def test_a_new_name_leaves_code_in_use_alone() -> None:
    code = jit.load(adder(1))
    jit.define("never_used", code.address("f"))
    assert jit.load(adder(1)) is code


@needs_elf
def test_large_zeros_cost_nothing() -> None:
    text = """
@before = internal global i64 5
@zeros = internal global [1073741824 x i8] zeroinitializer
@after = internal global i64 6
define ptr @last() {
  ret ptr getelementptr (i8, ptr @zeros, i64 1073741823)
}
define i64 @sum() {
  %a = load volatile i64, ptr @before
  %b = load volatile i64, ptr @after
  %c = add i64 %a, %b
  ret i64 %c
}
"""
    code = jit.load(text)
    assert code.times["link"] < 0.1
    assert call(code, "sum") == 11
    last = ctypes.cast(call(code, "last"), ctypes.POINTER(ctypes.c_byte))  # type: ignore[arg-type]
    assert last[0] == 0


def test_an_external_that_does_not_exist_is_refused(linker: str) -> None:
    text = "declare void @nowhere()\ndefine void @f() {\n  call void @nowhere()\n  ret void\n}"
    with pytest.raises(InternalError) as caught:
        jit.load(text)
    start = {"own": "compiled code refers to 'nowhere', which is not", "llvm": "LLVM cannot link"}
    assert str(caught.value).startswith(start[linker])
    assert "Fix: call jit.define(name, address) before jit.load" in str(caught.value)


@needs_elf
def test_what_our_loader_does_not_know_goes_to_llvms() -> None:
    common = "@c = common global i64 0\ndefine i64 @f() {\n  %x = load i64, ptr @c\n  ret i64 %x\n}"
    assert call(jit.load(common), "f") == 0


def test_thread_local_variables_are_refused() -> None:
    local = "@t = thread_local global i64 0\ndefine ptr @f() {\n  ret ptr @t\n}"
    with pytest.raises(InternalError, match="cannot be linked at run time: @t = thread_local"):
        jit.load(local)


@needs_elf
@pytest.mark.parametrize("content", [b"\x7fELF" + bytes(60), b"MZ" + bytes(62)])
def test_our_loader_refuses_other_objects(content: bytes) -> None:
    with pytest.raises(elf.UnsupportedError, match="not a relocatable object of x86-64"):
        elf.link(content, lambda name: 0)


def mapped(address: int) -> bool:
    ranges = re.findall(r"^(\w+)-(\w+) ", Path("/proc/self/maps").read_text(), re.MULTILINE)
    return any(int(low, 16) <= address < int(high, 16) for low, high in ranges)


@needs_elf
def test_memory_is_freed_with_the_code() -> None:
    code = jit.load(adder(5))
    address = code.address("f")
    assert mapped(address)
    del code
    gc.collect()
    assert not mapped(address)


@needs_elf
def test_code_is_not_writable_and_data_is_not_executable() -> None:
    jit.define("from_python", address_of(double_it))
    code = jit.load(EXTERNALS)
    maps = Path("/proc/self/maps").read_text().splitlines()

    def access(address: int) -> str:
        ends = [(line, *line.split()[0].split("-")) for line in maps]
        (line,) = (li for li, low, high in ends if int(low, 16) <= address < int(high, 16))
        return line.split()[1]

    assert access(code.address("next")) == "r-xp"
    assert access(code.address("shared")) == "rw-p"


# --- Malformed IR --------------------------------------------------------------------------------


def test_ir_that_does_not_parse_is_shown_with_its_lines() -> None:
    with pytest.raises(InternalError) as caught:
        jit.load("; a comment\ndefine i64 @f(i64 %x) {\n  %y = plus i64 %x, 1\n  ret i64 %y\n}\n")
    text = str(caught.value)
    assert text.startswith("LLVM refuses a module: LLVM IR parsing error\n<string>:3:8: error: ")
    assert "expected instruction opcode" in text
    assert "\n      2 | define i64 @f(i64 %x) {\n>     3 |   %y = plus i64 %x, 1\n" in text
    assert text.endswith("\n      5 | }")


@pytest.mark.parametrize("quote", ["", '"'])
def test_ir_that_does_not_verify_is_shown_with_its_lines(quote: str) -> None:
    y = f"%{quote}y{quote}"
    text = f"define i64 @f(i64 %x) {{\n  %z = add i64 {y}, 1\n  {y} = add i64 %x, 1 ; late\n  ret i64 %z\n}}"
    with pytest.raises(InternalError, match="Instruction does not dominate all uses") as caught:
        jit.load(text)
    assert f">     3 |   {y} = add i64 %x, 1 ; late\n" in str(caught.value)


@pytest.mark.parametrize("function", [jit.optimized_text, jit.assembly])
def test_malformed_ir_is_refused_by_the_views_too(function: object) -> None:
    with pytest.raises(InternalError, match="LLVM refuses a module"):
        function("define")  # type: ignore[operator]


# --- Processes -----------------------------------------------------------------------------------


def start(code: str) -> subprocess.Popen[str]:
    """Start a Python process that runs some code."""
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def output(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert err == ""
    return out


SCRIPT = f"""
import ctypes, sys
from dsl.codegen.cpu import jit
code = jit.load({adder(6)!r})
f = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(code.address("f"))
print(f(36), code.from_cache, jit.stats().llvm_compiles, jit.stats().disk_errors, "llvmlite.binding" in sys.modules)
"""


def test_sixteen_processes_fill_an_empty_cache_at_once(folder: Path) -> None:
    processes = [start(SCRIPT) for _ in range(16)]
    answers = [output(process).split() for process in processes]
    assert all(answer[0] == "42" and answer[3] == "0" for answer in answers), answers
    assert [path.suffix for path in folder.iterdir()] == [".dsl"]
    assert jit.load(adder(6)).from_cache


def test_a_second_process_does_not_compile() -> None:
    assert not jit.load(adder(6)).from_cache
    loads_llvm = str(not elf.runs_here())
    assert output(start(SCRIPT)).split() == ["42", "True", "0", "0", loads_llvm]


FORKS = f"""
import os, threading, warnings
from dsl.codegen.cpu import jit
warnings.simplefilter("ignore")  # newer Pythons warn of forks beside threads
texts = [{LOOP!r}.replace("3.0", f"{{k}}.5") for k in range(40)]
thread = threading.Thread(target=lambda: [jit.load(text) for text in texts])
thread.start()
for k in range(4):
    child = os.fork()
    if child == 0:
        assert jit.load({LOOP!r}.replace("3.0", f"{{k}}.25")).address("scale")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
thread.join()
print("done")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_forked_during_a_compile_can_compile() -> None:
    assert output(start(FORKS)) == "done\n"


# --- The store -----------------------------------------------------------------------------------


def only_file(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


def test_what_is_put_is_got(folder: Path) -> None:
    store = Store(str(folder), 1 << 20)
    assert store.get("a key: any text, ü") is None
    store.put("a key: any text, ü", b"\0bytes")
    store.put("empty", b"")
    assert store.get("a key: any text, ü") == b"\0bytes"
    assert store.get("empty") == b""
    store.put("empty", b"no more")
    assert Store(str(folder), 1 << 20).get("empty") == b"no more"
    assert store.counts == cache.Counts(hits=2, misses=1)


@pytest.mark.skipif(os.name != "posix", reason="needs modes")
def test_only_the_user_can_read_or_write_what_is_stored(folder: Path) -> None:
    old = os.umask(0)
    try:
        Store(str(folder), 1 << 20).put("key", b"payload")
    finally:
        os.umask(old)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert only_file(folder).stat().st_mode & 0o777 == 0o600


def cut(content: bytes) -> bytes:
    return content[:-1]


DAMAGES = {
    "truncated": (cut, "it has 6 bytes of 7"),
    "no payload": (lambda c: c[: cache._HEADER.size], "it has 0 bytes of 7"),
    "half a header": (lambda c: c[:20], "it is shorter than its header"),
    "empty": (lambda c: b"", "it is shorter than its header"),
    "longer": (lambda c: c + b"x", "it has 8 bytes of 7"),
    "a flipped bit": (lambda c: cut(c) + bytes([c[-1] ^ 1]), "its checksum is wrong"),
    "foreign": (lambda c: b"\x7fELF" + c[4:], "it is of another format"),
    "another version": (lambda c: c[:8] + b"\x63" + c[9:], "it is of another format"),
    "another key": (lambda c: c[:12] + bytes(32) + c[44:], "it holds the result for another key"),
    "zeros": (lambda c: bytes(len(c)), "it is of another format"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_ignored_and_replaced(
    damage: str, folder: Path, logged: Callable[[], list[str]]
) -> None:
    change, reason = DAMAGES[damage]
    store = Store(str(folder), 1 << 20)
    store.put("key", b"payload")
    path = only_file(folder)
    path.write_bytes(change(path.read_bytes()))
    logged()
    assert store.get("key") is None
    assert logged() == [f"[dsl.cache] {path} is not used: {reason}"]
    assert store.counts == cache.Counts(errors=1)
    store.put("key", b"payload")
    assert store.get("key") == b"payload"


@pytest.mark.skipif(os.name != "posix", reason="needs owners and modes")
def test_files_that_others_could_have_written_are_not_used(
    folder: Path, logged: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(str(folder), 1 << 20)
    store.put("key", b"payload")
    path, me = only_file(folder), os.geteuid()
    logged()
    for mode in (0o602, 0o620):
        path.chmod(mode)
        assert store.get("key") is None
        assert logged() == [f"[dsl.cache] {path} is not used: others may write it (mode {mode:o})"]
    path.chmod(0o600)
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    assert store.get("key") is None
    assert logged() == [f"[dsl.cache] {path} is not used: it belongs to user {me}, not to {me + 1}"]
    monkeypatch.undo()

    path.rename(folder / "elsewhere")
    path.symlink_to(folder / "elsewhere")
    assert store.get("key") is None
    path.unlink()
    os.mkfifo(path)
    assert store.get("key") is None  # and does not wait for a writer
    assert store.counts.errors == 5
    store.put("key", b"payload")
    assert store.get("key") == b"payload"


def test_damage_on_disk_costs_a_compile_and_no_more(folder: Path) -> None:
    jit.load(adder(7))
    gc.collect()
    path = only_file(folder)
    path.write_bytes(cut(path.read_bytes()))
    grown = Difference()
    assert call(jit.load(adder(7)), "f", 35) == 42
    assert grown() == {"llvm_compiles": 1, "disk_errors": 1}
    gc.collect()
    assert jit.load(adder(7)).from_cache


@pytest.mark.parametrize("place", ["a file", "below a file", "proc"])
def test_a_directory_that_cannot_be_made_means_memory_only(
    place: str, tmp_path: Path, logged: Callable[[], list[str]]
) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    directory = {"a file": file, "below a file": file / "x", "proc": Path("/proc/dsl/x")}[place]
    config.update(cache_dir=directory)
    grown = Difference()
    codes = [jit.load(adder(k)) for k in (8, 9)]
    assert [call(code, "f", 1) for code in codes] == [9, 10]
    assert jit.load(adder(8)) is codes[0]
    assert grown() == {"llvm_compiles": 2, "memory_hits": 1, "disk_misses": 2, "disk_errors": 1}
    (line,) = logged()
    assert line.startswith("[dsl.cache] compiled code is kept in memory only: ")
    assert file.read_text() == "mine"


def test_an_interrupted_write_leaves_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        Store(str(folder), 1 << 20).put("key", b"payload")
    assert list(folder.iterdir()) == []


# --- Its size ------------------------------------------------------------------------------------


def put_aged(store: Store, key: str, payload: bytes, hours: float) -> Path:
    """Put something as if it had been so many hours ago; return its file."""
    store.put(key, payload)
    path = Path(store._path(key))
    then = time.time() - hours * 3600
    os.utime(path, (then, then))
    return path


def test_what_was_not_used_for_longest_goes_first(
    folder: Path, logged: Callable[[], list[str]]
) -> None:
    store = Store(str(folder), 10_000)
    paths = [put_aged(store, str(k), bytes(900), 30 - k) for k in range(10)]
    (folder / "notes.txt").write_bytes(bytes(50_000))
    assert store.get("1") is not None  # which renews it
    store.put("last", bytes(900))
    store.sweep()
    here = [path for path in paths if path.exists()]
    assert here == [paths[1], *paths[4:]]
    assert store.counts.evictions == 3
    assert sum(" removed " in line for line in logged()) == 3
    assert Path(store._path("last")).exists()
    assert (folder / "notes.txt").exists()
    store.sweep()
    assert store.counts.evictions == 3


def test_a_store_stays_near_its_limit_without_a_sweep_for_each_put(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweeps, sweep = [], Store.sweep
    monkeypatch.setattr(Store, "sweep", lambda self: sweeps.append(sweep(self)))
    for k in range(600):  # each a new store, as if by a new process
        Store(str(folder), 200_000).put(str(k), bytes(1000))
    total = sum(path.stat().st_size for path in folder.iterdir())
    assert 100_000 < total < 260_000
    assert 15 < len(sweeps) < 120


def test_temporary_files_of_dead_processes_are_removed(folder: Path) -> None:
    store = Store(str(folder), 1 << 20)
    store.put("key", b"payload")
    old, young = (Path(f"{store._path('key')}.{name * 12}.tmp") for name in "ab")
    for path in (old, young):
        path.write_bytes(b"half")
    os.utime(old, (0, 0))
    store.sweep()
    assert [old.exists(), young.exists()] == [False, True]


def test_a_hit_renews_the_date_only_of_old_files(folder: Path) -> None:
    store = Store(str(folder), 1 << 20)
    path = put_aged(store, "key", b"payload", hours=0.5)
    before = path.stat().st_mtime
    store.get("key")
    assert path.stat().st_mtime == before
    os.utime(path, (0, 0))
    store.get("key")
    assert path.stat().st_mtime > time.time() - 60


def test_what_is_larger_than_the_limit_is_not_kept(folder: Path) -> None:
    Store(str(folder), 100).put("key", bytes(101))
    Store(str(folder), 0).put("key", b"")
    assert not folder.exists()


# --- Options -------------------------------------------------------------------------------------


def test_the_directory_comes_from_the_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cache.store().directory == str(tmp_path / "cache")
    assert cache.store() is cache.store()
    monkeypatch.delenv("DSL_CACHE_DIR")
    config.reset()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.store().directory == str(tmp_path / "xdg" / "dsl")
    monkeypatch.setenv("HOME", str(tmp_path))
    for unset in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", unset)
        assert cache.store().directory == str(tmp_path / ".cache" / "dsl")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert cache.store().directory is None
    with config.override(cache_dir=Path("here"), cache_size="2M"):
        assert cache.store().directory == os.path.abspath("here")
        assert cache.store().limit == 2 << 20


@pytest.mark.parametrize("value", ["", "off"])
def test_the_disk_cache_can_be_switched_off(
    value: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DSL_CACHE_DIR", value)
    config.reset()
    grown = Difference()
    code = jit.load(adder(10))
    assert jit.load(adder(10)) is code
    assert grown() == {"llvm_compiles": 1, "memory_hits": 1}
    assert not folder.exists()


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("1000", 1000), ("3K", 3072), ("512M", 512 << 20), ("2g", 2 << 30)]
    + [("1 T", 1 << 40), ("64MiB", 64 << 20), ("1GB", 1 << 30), (5, 5)],
)
def test_sizes(text: str, size: int) -> None:
    with config.override(cache_size=text):
        assert config.cache_size == size


@pytest.mark.parametrize("text", ["", "M", "-1", "1.5G", "1KM", "many", None, 2.5])
def test_sizes_that_are_none(text: object) -> None:
    with pytest.raises(ConfigError, match="expected a size: a whole number of bytes, or one"):
        config.update(cache_size=text)
