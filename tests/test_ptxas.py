"""What ptxas tells of PTX, without a GPU; occupancy against NVIDIA's own counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsl.codegen.cuda import ptxas, toolkit
from dsl.codegen.cuda.ptxas import AssemblyError, Usage, architectures, assemble, occupancy
from dsl.errors import DeviceError, InternalError

needs_ptxas = pytest.mark.skipif(toolkit.ptxas() is None, reason="there is no ptxas")

HEAD = ".version 6.3\n.target sm_75\n.address_size 64\n"
PTX = (
    HEAD
    + """
.visible .entry turn(.param .u64 a) {
  .reg .u64 %rd<2>;
  .reg .u32 %r<3>;
  .shared .align 4 .b8 held[512];
  ld.param.u64 %rd1, [a];
  mov.u32 %r1, %tid.x;
  st.shared.u32 [held], %r1;
  bar.sync 0;
  ld.shared.u32 %r2, [held];
  st.global.u32 [%rd1], %r2;
  ret;
}
.visible .entry empty() { ret; }
"""
)


def crowded(values: int) -> str:
    """A kernel that has so many values alive at once, in at most 24 registers."""
    loads = [f"  ld.volatile.global.f32 %f{i}, [%rd1+{4 * i}];" for i in range(values)]
    stores = [f"  st.volatile.global.f32 [%rd1+{4 * i}], %f{i};" for i in reversed(range(values))]
    head = [
        ".visible .entry crowded(.param .u64 a) .maxnreg 24 {",
        f"  .reg .u64 %rd<2>;\n  .reg .f32 %f<{values}>;",
        "  ld.param.u64 %rd1, [a];",
    ]
    return HEAD + "\n".join([*head, *loads, *stores, "  ret;", "}\n"])


@needs_ptxas
@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90", "sm_100"])
def test_ptx_assembles_for_its_architecture_and_newer_ones(arch: str) -> None:
    if arch not in architectures():
        pytest.skip(f"this ptxas does not know {arch}")
    made = assemble(PTX, arch)
    assert set(made.kernels) == {"turn", "empty"}
    turn = made.kernels["turn"]
    assert 0 < turn.registers <= 16
    assert (turn.shared, turn.barriers, turn.spill_stores, turn.stack) == (512, 1, 0, 0)
    assert (made.kernels["empty"].shared, made.kernels["empty"].barriers) == (0, 0)
    assert f"'turn' for '{arch}'" in made.log


@needs_ptxas
def test_spills_are_seen() -> None:
    usage = assemble(crowded(64), "sm_80").kernels["crowded"]
    assert usage.registers <= 24
    assert usage.spill_stores > 0
    assert usage.spill_loads > 0
    assert usage.stack > 0
    few = assemble(crowded(8), "sm_80").kernels["crowded"]
    assert (few.spill_stores, few.spill_loads) == (0, 0)


@needs_ptxas
def test_a_text_is_assembled_once() -> None:
    assert assemble(PTX, "sm_80") is assemble(str(PTX), "sm_80")


@needs_ptxas
def test_a_refusal_shows_the_words_of_ptxas_and_the_lines() -> None:
    with pytest.raises(AssemblyError) as error:
        assemble(PTX.replace("bar.sync", "bar.sink"), "sm_80")
    assert isinstance(error.value, InternalError)
    assert error.value.message.startswith("ptxas refuses the PTX for sm_80\n")
    for part in (
        "Unknown modifier '.sink'",
        "  >    12 |   bar.sink 0;",
        "      13 |   ld.shared.u32",
    ):
        assert part in error.value.message


@needs_ptxas
def test_an_architecture_that_is_older_than_the_target_is_refused() -> None:
    newer = PTX.replace("sm_75", "sm_90").replace(".version 6.3", ".version 7.8")
    with pytest.raises(AssemblyError, match=r"SM version specified by \.target is higher"):
        assemble(newer, "sm_80")


@needs_ptxas
def test_an_architecture_that_ptxas_does_not_know_is_named() -> None:
    with pytest.raises(DeviceError, match="does not know 'sm_12'") as error:
        assemble(PTX, "sm_12")
    assert "sm_80" in error.value.remedy


@needs_ptxas
def test_architectures_are_in_order() -> None:
    known = architectures()
    assert {"sm_75", "sm_80", "sm_90"} <= set(known)
    assert known.index("sm_90") < known.index("sm_90a")
    assert "sm_100" not in known or known.index("sm_90a") < known.index("sm_100")


def test_without_ptxas_there_is_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolkit, "find_ptxas", lambda: None)
    with pytest.raises(DeviceError, match="there is no ptxas") as error:
        assemble(PTX, "sm_80")
    assert "pip install nvidia-cuda-nvcc" in error.value.remedy


def test_a_ptxas_that_fails_without_a_word_is_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "ptxas"
    path.write_text("#!/bin/sh\nexit 3\n")
    path.chmod(0o755)
    monkeypatch.setattr(toolkit, "find_ptxas", lambda: toolkit.Found(path, "here"))
    with pytest.raises(AssemblyError, match="ptxas refuses the PTX for sm_80"):
        assemble(PTX, "sm_80")


# What ptxas of CUDA 11 and 13 print; a function that is called has a frame, which is not the kernel's.
LOG = """\
ptxas info    : 8 bytes gmem
ptxas info    : Compiling entry function '_Z3addPfS_' for 'sm_80'
ptxas info    : Function properties for _Z3addPfS_
    16 bytes stack frame, 24 bytes spill stores, 32 bytes spill loads
ptxas info    : Used 255 registers, used 2 barriers, 16 bytes cumulative stack size, 4096 bytes smem, 368 bytes cmem[0], 8 bytes cmem[2]
ptxas info    : Function properties for helper
    99 bytes stack frame, 98 bytes spill stores, 97 bytes spill loads
ptxas info    : Compiling entry function 'older' for 'sm_80'
ptxas info    : Function properties for helper
    99 bytes stack frame, 98 bytes spill stores, 97 bytes spill loads
ptxas info    : Function properties for older
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 10 registers, 360 bytes cmem[0]
"""


def test_what_ptxas_prints_is_read() -> None:
    assert ptxas._usages(LOG.splitlines()) == {
        "_Z3addPfS_": Usage(255, 16, 24, 32, 4096, 376, 2),
        "older": Usage(10, constant=360),
    }


# Blocks per multiprocessor by cuda_occupancy.h of CUDA 13.4, compiled and asked, for the limits of the Programming Guide.
# All 8470 combinations of 11 counts of registers, 11 sizes of shared memory and 10 of blocks agreed; here are some.
#   sm, registers, shared, threads, blocks
ROWS = [
    (75, 32, 0, 1024, 1), (75, 64, 0, 256, 4), (75, 33, 9000, 128, 7), (75, 255, 0, 256, 1), (75, 16, 65536, 64, 1),
    (75, 40, 0, 32, 16), (80, 32, 0, 1024, 2), (80, 64, 0, 256, 4), (80, 72, 0, 128, 7), (80, 168, 0, 128, 3),
    (80, 32, 49152, 256, 3), (80, 32, 163840, 256, 1), (80, 96, 1024, 192, 3), (80, 128, 0, 1024, 0), (80, 1, 0, 32, 32),
    (80, 255, 0, 33, 4), (80, 32, 33000, 96, 4), (80, 16, 16384, 64, 9), (86, 32, 0, 768, 2), (86, 40, 0, 256, 6),
    (86, 64, 0, 1024, 1), (86, 32, 49152, 128, 2), (86, 32, 65536, 128, 1), (86, 16, 0, 32, 16), (86, 32, 163840, 64, 0),
    (89, 16, 0, 32, 24), (89, 32, 0, 1024, 1), (89, 64, 9000, 256, 4), (89, 96, 16384, 192, 3), (89, 168, 0, 512, 0),
    (90, 32, 0, 1024, 2), (90, 64, 16384, 128, 8), (90, 32, 100000, 256, 2), (90, 255, 0, 256, 1), (90, 16, 4096, 64, 32),
    (90, 40, 33000, 512, 3), (100, 32, 0, 768, 2), (100, 64, 0, 512, 2), (100, 32, 65536, 128, 3), (100, 72, 1, 96, 9),
    (100, 1, 0, 64, 32), (100, 33, 9000, 256, 6), (120, 32, 0, 512, 3), (120, 40, 0, 96, 16), (120, 64, 4096, 128, 8),
    (120, 32, 100000, 64, 1), (120, 16, 1024, 32, 24), (120, 128, 0, 768, 0),
]  # fmt: skip


@pytest.mark.parametrize(("sm", "registers", "shared", "threads", "blocks"), ROWS)
def test_occupancy_is_what_nvidia_counts(
    sm: int, registers: int, shared: int, threads: int, blocks: int
) -> None:
    warps = -(-threads // 32)
    most = {75: 32, 80: 64, 86: 48, 89: 48, 90: 64, 100: 64, 120: 48}[sm]
    assert occupancy(registers, shared, threads, sm) == blocks * warps / most


def test_a_block_that_does_not_fit_has_no_occupancy() -> None:
    assert occupancy(256, 0, 32, 80) == occupancy(32, 0, 2048, 80) == occupancy(32, 1 << 20, 32, 80) == 0  # fmt: skip


def test_an_architecture_without_known_limits_is_named() -> None:
    with pytest.raises(DeviceError, match="the limits of sm_12 are not known"):
        occupancy(32, 0, 256, 12)
