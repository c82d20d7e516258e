"""The PTX emulator on whole programs: divergence, barriers, exchange between lanes, atomics, memory, calls, counters."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_kernels import count, kernel, run

from dsl.codegen.cuda.emulator import Memory, PtxModule

SHARED = ".shared .align 4 .b8 buffer[256];"

# Control flow -------------------------------------------------------------------------------------------------------------


def collatz(v: int) -> int:
    steps = 0
    while v != 1:
        v = v // 2 if v % 2 == 0 else 3 * v + 1
        steps += 1
    return steps


def test_loops_of_different_length_with_a_branch_inside() -> None:
    text = kernel("""
    ld.global.u32 %r1, [%x]; mov.u32 %r2, 0;
    LOOP: setp.eq.u32 %p1, %r1, 1; @%p1 bra DONE;
    and.b32 %r3, %r1, 1; setp.eq.u32 %p2, %r3, 0; @%p2 bra EVEN;
    mad.lo.u32 %r1, %r1, 3, 1; bra.uni NEXT;
    EVEN: shr.u32 %r1, %r1, 1;
    NEXT: add.u32 %r2, %r2, 1; bra.uni LOOP;
    DONE: st.global.u32 [%o], %r2; ret;""")
    x = np.arange(1, 257, dtype="u4")
    assert run(text, x, 4, 64).tolist() == [collatz(v) for v in range(1, 257)]
    assert run(text, x, 4, 64, lanes=64).tolist() == [collatz(v) for v in range(1, 257)]


def test_nested_loops() -> None:
    """out = sum over a < x of the number of b <= a, so x(x+1)/2."""
    text = kernel("""
    ld.global.u32 %r1, [%x]; mov.u32 %r2, 0; mov.u32 %r5, 0;
    OUTER: setp.ge.u32 %p1, %r2, %r1; @%p1 bra DONE;
    mov.u32 %r3, 0;
    INNER: setp.gt.u32 %p2, %r3, %r2; @%p2 bra LEAVE;
    add.u32 %r5, %r5, 1; add.u32 %r3, %r3, 1; bra INNER;
    LEAVE: add.u32 %r2, %r2, 1; bra OUTER;
    DONE: st.global.u32 [%o], %r5; exit;""")
    x = np.arange(64, dtype="u4")[::-1].copy() % 13
    assert (run(text, x, 1, 64) == x * (x + 1) // 2).all()


def test_early_exit_and_guarded_return() -> None:
    text = kernel(
        "setp.ge.u32 %p1, %i, %n; @%p1 ret; ld.global.u32 %r1, [%x]; st.global.u32 [%o], %r1; ret;"
    )
    x = np.arange(1, 101, dtype="u4")
    assert (run(text, x, 4, 32) == x).all()
    assert run(text, x, 4, 32, n=50).tolist() == [*range(1, 51), *[0] * 50]


def test_guarded_memory_accesses() -> None:
    text = kernel("""ld.global.u32 %r1, [%x]; setp.lt.u32 %p1, %r1, 10; mov.u32 %r2, 7;
    @%p1 ld.global.u32 %r2, [%x+4]; @!%p1 add.u32 %r2, %r2, 1; @%p1 st.global.u32 [%o], %r2; ret;""")
    x = np.arange(33, dtype="u4")
    assert run(text, x, 1, 32).tolist() == [*range(1, 11), *[0] * 23]


def test_switch() -> None:
    text = kernel("""ld.global.u32 %r1, [%x]; mov.u32 %r2, 99;
    TS: .branchtargets A, B, C;
    setp.gt.u32 %p1, %r1, 2; @%p1 bra D; brx.idx %r1, TS;
    A: mov.u32 %r2, 10; bra D;
    B: mov.u32 %r2, 20; bra D;
    C: mov.u32 %r2, 30;
    D: st.global.u32 [%o], %r2; ret;""")
    x = np.arange(64, dtype="u4") % 5
    assert (run(text, x, 1, 64) == np.array([10, 20, 30, 99, 99])[x]).all()


def test_three_dimensions_and_special_registers() -> None:
    body = """
    mov.u32 %r1, %tid.y; mov.u32 %r2, %tid.z; mov.u32 %r3, %ctaid.y; mov.u32 %r4, %ntid.y; mov.u32 %r5, %nctaid.y;
    mov.u32 %r6, %laneid; mov.u32 %r7, %warpid; mov.u32 %r8, %lanemask_lt;
    shl.b32 %r1, %r1, 4; shl.b32 %r2, %r2, 8; shl.b32 %r3, %r3, 12; shl.b32 %r4, %r4, 16; shl.b32 %r5, %r5, 20;
    or.b32 %r1, %r1, %r2; or.b32 %r1, %r1, %r3; or.b32 %r1, %r1, %r4; or.b32 %r1, %r1, %r5; or.b32 %r1, %r1, %t;
    mov.u32 %r9, %tid.y; mov.u32 %r10, %tid.z; mad.lo.u32 %r9, %r10, 3, %r9; mad.lo.u32 %r9, %r9, 4, %t;
    mov.u32 %r11, %ctaid.y; mov.u32 %r12, %nctaid.x; mad.lo.u32 %r11, %r11, %r12, %b; mad.lo.u32 %r9, %r11, 48, %r9;
    mad.wide.u32 %rd1, %r9, 16, %out; st.global.v4.u32 [%rd1], {%r1, %r6, %r7, %r8}; ret;"""
    memory = Memory()
    out = memory.allocate(16 * 48 * 6)
    PtxModule(kernel(body)).launch(memory, "k", (2, 3), (4, 3, 4), [out, out, 0])
    got = memory.read(out, "u4", 4 * 48 * 6).reshape(3, 2, 4, 3, 4, 4)
    by, _, tz, ty, tx = np.indices((3, 2, 4, 3, 4))
    assert (got[..., 0] == (tx | ty << 4 | tz << 8 | by << 12 | 3 << 16 | 3 << 20)).all()
    linear = tx + 4 * ty + 12 * tz
    assert (got[..., 1] == linear % 32).all()
    assert (got[..., 2] == linear // 32).all()
    assert (got[..., 3] == (1 << linear % 32) - 1).all()


def test_a_lock_is_released() -> None:
    """Lanes spin for a lock that one of them holds; the text has the spinning before the release."""
    text = kernel("""
    SPIN: atom.global.cas.b32 %r1, [%in], 0, 1; setp.ne.u32 %p1, %r1, 0; @%p1 bra SPIN;
    ld.volatile.global.u32 %r2, [%out]; add.u32 %r2, %r2, 1; st.volatile.global.u32 [%out], %r2;
    atom.global.exch.b32 %r3, [%in], 0; ret;""")
    assert run(text, np.zeros(1, "u4"), 1, 8)[0] == 8


def test_debug_directives_and_scopes() -> None:
    """Lines that say nothing to the emulator, and names that a brace pair makes its own."""
    text = kernel("""
	.loc	1 3 4, function_name $L__info_string0, inlined_at 1 2 3
	.pragma "nounroll";
    ld.global.u32 %r1, [%x]; // begin inline asm
    {.reg.b32 %r1; .reg .pred %p1; mov.b32 %r1, 4; setp.eq.u32 %p1, %r1, 5; @%p1 bra SKIP; mov.b32 %r2, 7; SKIP: }
    /* SKIP: below
    is another one */ bra SKIP; mov.b32 %r1, 9; SKIP: add.u32 %r1, %r1, %r2; st.global.u32 [%o], %r1; ret;""")
    text += '\n\t.file\t1 "a.cu"\n\t.section\t.debug_str\n\t{\n$L__info_string0:\n.b8 1,2\n\t}\n'
    assert run(text, np.arange(32, dtype="u4")).tolist() == [*range(7, 39)]


# Shared memory and barriers ----------------------------------------------------------------------------------------------

REDUCE = """
    ld.global.f32 %r1, [%x]; mov.u32 %r2, buffer; mad.lo.u32 %r3, %t, 4, %r2; st.shared.f32 [%r3], %r1;
    shr.u32 %r4, %w, 1;
    LOOP: bar.sync 0; setp.ge.u32 %p1, %t, %r4; @%p1 bra SKIP;
    shl.b32 %r5, %r4, 2; add.u32 %r5, %r5, %r3; ld.shared.f32 %r6, [%r5]; ld.shared.f32 %r7, [%r3];
    add.rn.f32 %r7, %r7, %r6; st.shared.f32 [%r3], %r7;
    SKIP: shr.u32 %r4, %r4, 1; setp.ne.u32 %p2, %r4, 0; @%p2 bra LOOP;
    setp.ne.u32 %p3, %t, 0; @%p3 bra DONE;
    ld.shared.f32 %r8, [buffer]; mad.wide.u32 %rd1, %b, 4, %out; st.global.f32 [%rd1], %r8;
    DONE: ret;"""


@pytest.mark.parametrize("block", [32, 64, 256])
@pytest.mark.parametrize("dynamic", [False, True])
def test_block_reduction(block: int, dynamic: bool) -> None:
    before = (
        ".extern .shared .align 4 .b8 buffer[];"
        if dynamic
        else f".shared .align 4 .b8 buffer[{4 * block}];"
    )
    x = np.random.default_rng(0).integers(0, 100, 8 * block).astype("f4")
    got = run(
        kernel(REDUCE, before),
        x,
        8,
        block,
        out=np.zeros(8, "f4"),
        shared=4 * block if dynamic else 0,
    )
    assert (got == x.reshape(8, block).sum(1)).all()


def test_barrier_reductions() -> None:
    text = kernel("""ld.global.u32 %r1, [%x]; setp.gt.u32 %p1, %r1, 50;
    bar.red.popc.u32 %r2, 0, %p1; bar.red.and.pred %p2, 0, %p1; bar.red.or.pred %p3, 0, %p1;
    selp.u32 %r3, 1000, 0, %p2; selp.u32 %r4, 2000, 0, %p3; add.u32 %r2, %r2, %r3; add.u32 %r2, %r2, %r4;
    st.global.u32 [%o], %r2; ret;""")
    x = np.arange(128, dtype="u4") % 96
    x[96:] = 90
    got = run(text, x, 4, 32).reshape(4, 32)
    assert got[:, 0].tolist() == [0, 2013, 3032, 3032]


def test_barriers_in_uniform_branches() -> None:
    """Half of the blocks go through a barrier that the others never see."""
    text = kernel(
        """
    mov.u32 %r2, buffer; mad.lo.u32 %r3, %t, 4, %r2; and.b32 %r4, %b, 1; setp.eq.u32 %p1, %r4, 0; @%p1 bra EVEN;
    st.shared.u32 [%r3], %t; bar.sync 0; xor.b32 %r5, %t, 1; mad.lo.u32 %r5, %r5, 4, %r2; ld.shared.u32 %r6, [%r5];
    bra DONE;
    EVEN: mov.u32 %r6, 77;
    DONE: st.global.u32 [%o], %r6; ret;""",
        ".shared .align 4 .b8 buffer[128];",
    )
    got = run(text, np.zeros(128, "u4"), 4, 32).reshape(4, 32)
    assert (got[::2] == 77).all()
    assert (got[1::2] == (np.arange(32) ^ 1)).all()


# Exchange between lanes ---------------------------------------------------------------------------------------------------


def shuffled(mode: str, lane: int, b: int, c: int) -> tuple[int, bool]:
    """The source lane, from the PTX manual."""
    segment, limit = c >> 8 & 31, c & 31
    top = (lane & segment) | (limit & ~segment)
    j = {
        "up": lane - b,
        "down": lane + b,
        "bfly": lane ^ b,
        "idx": (lane & segment) | (b & ~segment & 31),
    }[mode]
    inside = j >= top if mode == "up" else j <= top
    return (j if inside else lane), inside


@pytest.mark.parametrize("c", [31, 0, 0x1000 | 15, 0x1800 | 7, 0x1C03])
@pytest.mark.parametrize("mode", ["up", "down", "bfly", "idx"])
def test_shuffles(mode: str, c: int) -> None:
    for b in (0, 1, 3, 8, 16):
        text = kernel(f"""ld.global.u32 %r1, [%x]; shfl.sync.{mode}.b32 %r2|%p1, %r1, {b}, {c}, -1;
        selp.u32 %r3, 1000, 0, %p1; add.u32 %r2, %r2, %r3; st.global.u32 [%o], %r2; ret;""")
        x = np.arange(64, dtype="u4") + 100
        expected = []
        for lane in range(64):
            source, inside = shuffled(mode, lane % 32, b, c)
            expected.append(100 + lane // 32 * 32 + source + 1000 * inside)
        assert run(text, x, 1, 64).tolist() == expected


def test_shuffle_with_lane_dependent_source_and_half_a_warp() -> None:
    text = kernel("""ld.global.u32 %r1, [%x]; setp.lt.u32 %p1, %t, 16; @%p1 bra LOW;
    bra DONE;
    LOW: xor.b32 %r3, %t, 15; shfl.sync.idx.b32 %r1, %r1, %r3, 31, 0xffff;
    DONE: st.global.u32 [%o], %r1; ret;""")
    assert run(text, np.arange(32, dtype="u4")).tolist() == [*range(15, -1, -1), *range(16, 32)]


def test_lanes_wait_for_their_mask() -> None:
    """Lanes reach the shuffle from two sides, one of them after a loop that lies below it in the text."""
    text = kernel("""ld.global.u32 %r1, [%x]; mov.u32 %r2, 0; setp.lt.u32 %p1, %t, 5; @%p1 bra LATER;
    MEET: shfl.sync.bfly.b32 %r3, %r1, 16, 31, -1; bra DONE;
    LATER: add.u32 %r2, %r2, 1; setp.lt.u32 %p2, %r2, %t; @%p2 bra LATER;
    bra MEET;
    DONE: st.global.u32 [%o], %r3; ret;""")
    assert run(text, np.arange(32, dtype="u4")).tolist() == [lane ^ 16 for lane in range(32)]


def test_votes() -> None:
    text = kernel("""ld.global.u32 %r1, [%x]; setp.gt.u32 %p1, %r1, 5;
    vote.sync.ballot.b32 %r2, %p1, -1; vote.sync.any.pred %p2, %p1, -1; vote.sync.all.pred %p3, %p1, -1;
    vote.sync.uni.pred %p4, %p1, -1; activemask.b32 %r6;
    selp.u32 %r3, 1, 0, %p2; selp.u32 %r4, 2, 0, %p3; selp.u32 %r5, 4, 0, %p4; or.b32 %r3, %r3, %r4;
    or.b32 %r3, %r3, %r5; mad.wide.u32 %rd1, %i, 8, %out; xor.b32 %r2, %r2, %r6; st.global.v2.u32 [%rd1], {%r2, %r3};
    ret;""")
    x = np.concatenate([np.arange(32), np.full(32, 9), np.zeros(32)]).astype("u4")
    got = run(text, x, 3, 32, out=np.zeros(192, "u4")).reshape(96, 2)
    assert got[::32].tolist() == [[0x3F, 1], [0, 7], [0xFFFFFFFF, 4]]


def test_match_and_redux() -> None:
    text = kernel("""ld.global.u32 %r1, [%x]; match.any.sync.b32 %r2, %r1, -1; match.all.sync.b32 %r3|%p1, %r1, -1;
    redux.sync.add.u32 %r4, %r1, -1; redux.sync.max.s32 %r5, %r1, -1; add.u32 %r3, %r3, %r5;
    mad.wide.u32 %rd1, %i, 16, %out; selp.u32 %r6, 1, 0, %p1; st.global.v4.u32 [%rd1], {%r2, %r3, %r4, %r6}; ret;""")
    x = np.concatenate([np.arange(32) % 4, np.full(32, 3)]).astype("u4")
    got = run(text, x, 1, 64, out=np.zeros(256, "u4")).reshape(64, 4)
    assert got[1].tolist() == [0x22222222, 3, 48, 0]
    assert got[40].tolist() == [0xFFFFFFFF, 2, 96, 1]


# Atomics -------------------------------------------------------------------------------------------------------------------

ATOMICS = {
    "add.u32": lambda x, v: x + v, "min.u32": min, "max.u32": max, "and.b32": lambda x, v: x & v,
    "or.b32": lambda x, v: x | v, "xor.b32": lambda x, v: x ^ v, "exch.b32": lambda x, v: v,
    "inc.u32": lambda x, v: 0 if x >= v else x + 1, "dec.u32": lambda x, v: v if x == 0 or x > v else x - 1,
}  # fmt: skip


@pytest.mark.parametrize("space", ["global", "shared"])
@pytest.mark.parametrize("name", ATOMICS)
def test_atomics_collide_in_lane_order(name: str, space: str) -> None:
    target = "[%in]" if space == "global" else "[cell]"
    text = kernel(
        f"""setp.ne.u32 %p1, %t, 0; @%p1 bra GO; ld.global.u32 %r1, [%in]; st.shared.u32 [cell], %r1;
    GO: bar.sync 0; mul.lo.u32 %r2, %t, 7; and.b32 %r2, %r2, 31;
    atom.{space}.{name} %r3, {target}, %r2; st.global.u32 [%o], %r3; ret;""",
        ".shared .align 4 .b8 cell[4];",
    )
    value, expected = 11, []
    for lane in range(64):
        expected.append(value)
        value = ATOMICS[name](value, lane * 7 & 31)
    assert run(text, np.array([11], "u4"), 1, 64, out=np.zeros(64, "u4")).tolist() == expected


def test_signed_and_wide_atomics() -> None:
    text = kernel("""sub.s32 %r1, 10, %t; cvt.s64.s32 %rd1, %r1; red.global.min.s32 [%out], %r1;
    red.global.add.u64 [%out+8], %rd1; atom.global.max.s64 %rd2, [%out+16], %rd1;
    mov.u32 %r2, %t; atom.global.cas.b32 %r3, [%out+4], 0, %r2; ret;""")
    got = run(text, np.zeros(2, "u4"), out=np.array([0, 0, 0, -100], "i8"))
    assert got[0] & 0xFFFFFFFF == 2**32 - 21
    assert got[1] == sum(10 - t for t in range(32))
    assert got[2] == 10
    assert got[0] >> 32 & 0xFFFFFFFF == 1


@pytest.mark.parametrize(("t", "dtype"), [("f32", "f4"), ("f64", "f8")])
def test_float_atomics(t: str, dtype: str) -> None:
    x, y = ("%r1", "%r2") if t == "f32" else ("%rd1", "%rd2")
    text = kernel(f"cvt.rn.{t}.u32 {x}, %t; atom.global.add.{t} {y}, [%out], {x}; ret;")
    assert run(text, np.zeros(1, dtype), 1, 96)[0] == 96 * 95 // 2


@pytest.mark.parametrize(("t", "dtype"), [("f16", "f2"), ("bf16", "u2"), ("f16x2", "f2")])
def test_half_atomics(t: str, dtype: str) -> None:
    one = {"f16": "0x3C00", "bf16": "0x3F80", "f16x2": "0x3C003C00"}[t]
    register, size = ("%r1", "b32") if t == "f16x2" else ("%h1", "b16")
    text = kernel(
        f"mov.{size} {register}, {one}; red.global.add.noftz.{t} [%out], {register}; ret;"
    )
    got = run(text, np.zeros(2, "f2"), out=np.zeros(2, dtype))
    assert got[0] == (0x4200 if t == "bf16" else 32)
    assert got[1] == (32 if t == "f16x2" else 0)


# Memory ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("t", "dtype", "width"),
    [(t, d, w) for t, d in (("b8", "u1"), ("u16", "u2"), ("f32", "f4"), ("b64", "u8")) for w in (2, 4, 8)
     if np.dtype(d).itemsize * w <= 32],
)  # fmt: skip
def test_vector_accesses(t: str, dtype: str, width: int) -> None:
    size = np.dtype(dtype).itemsize
    prefix = {1: "%h", 2: "%h", 4: "%r", 8: "%rd"}[size]
    names = ", ".join(f"{prefix}{10 + k}" for k in range(width))
    backwards = ", ".join(reversed(names.split(", ")))
    text = kernel(f"""mad.wide.u32 %rd1, %i, {size * width}, %in; mad.wide.u32 %rd2, %i, {size * width}, %out;
    ld.global.v{width}.{t} {{{names}}}, [%rd1]; st.global.v{width}.{t} [%rd2], {{{backwards}}}; ret;""")
    x = np.arange(64 * width).astype(dtype)
    assert (run(text, x, 2, 32).reshape(64, width) == x.reshape(64, width)[:, ::-1]).all()


def test_narrow_loads_extend() -> None:
    text = kernel("""cvt.u64.u32 %rd1, %t; add.u64 %rd1, %rd1, %in; ld.global.s8 %r1, [%rd1]; ld.global.u8 %r2, [%rd1];
    ld.global.s8 %h1, [%rd1]; cvt.s32.s16 %r3, %h1; sub.u32 %r3, %r3, %r1; or.b32 %r2, %r2, %r3;
    mad.wide.u32 %rd2, %t, 8, %out; st.global.v2.u32 [%rd2], {%r1, %r2}; ret;""")
    x = np.arange(-16, 16).astype("i1")
    got = run(text, x, out=np.zeros(64, "i4")).reshape(32, 2)
    assert (got[:, 0] == x).all()
    assert (got[:, 1] == x.view("u1")).all()


def test_variables_of_the_module() -> None:
    before = """.visible .const .align 4 .b8 table[16] = {1, 0, 0, 0, 2, 0, 0, 0, 0xFF, 255, 255, 255};
.visible .global .align 4 .f32 half = 0f3F000000;
.visible .global .align 8 .u64 pointers[3] = {half, generic(half), half+4};
.global .align 4 .u32 counter;"""
    text = kernel(
        """and.b32 %r1, %t, 3; mov.u64 %rd1, table; mad.wide.u32 %rd1, %r1, 4, %rd1; ld.const.u32 %r2, [%rd1];
    ld.global.u64 %rd2, [pointers+8]; ld.f32 %r3, [%rd2]; cvt.rzi.u32.f32 %r3, %r3; add.u32 %r2, %r2, %r3;
    atom.global.add.u32 %r4, [counter], 1; st.global.u32 [%o], %r2; ret;""",
        before,
    )
    module, memory = PtxModule(text), Memory()
    out = memory.allocate(128)
    for _ in range(2):
        module.launch(memory, "k", (1,), (32,), [out, out, 0])
    assert memory.read(out, "u4", 4).tolist() == [1, 2, 0xFFFFFFFF, 0]
    assert memory.read(module.address_of(memory, "counter"), "u4", 1)[0] == 64
    assert (
        memory.read(module.address_of(memory, "pointers"), "u8", 3)[2]
        == module.address_of(memory, "half") + 4
    )
    assert memory.in_use == 128


def test_local_memory_and_generic_addresses() -> None:
    """Each lane has its own array, reached as local and as generic memory; shared memory the same."""
    text = kernel(
        """.local .align 4 .b8 depot[16]; .reg .b64 %sp;
    mov.u64 %sp, depot; cvta.local.u64 %rd1, %sp; and.b32 %r1, %t, 3; mad.wide.u32 %rd2, %r1, 4, %rd1;
    st.local.v4.u32 [%sp], {0, 0, 0, 0}; st.u32 [%rd2], %t; ld.local.u32 %r2, [%sp+4];
    mov.u64 %rd3, buffer; cvta.shared.u64 %rd4, %rd3; mad.wide.u32 %rd5, %t, 4, %rd4; st.u32 [%rd5], %r2;
    cvta.to.shared.u64 %rd6, %rd5; ld.shared.u32 %r3, [%rd6]; isspacep.shared %p1, %rd5; isspacep.local %p2, %rd5;
    selp.u32 %r4, 100, 0, %p1; selp.u32 %r5, 200, 0, %p2; add.u32 %r3, %r3, %r4; add.u32 %r3, %r3, %r5;
    st.global.u32 [%o], %r3; ret;""",
        ".shared .align 4 .b8 buffer[128];",
    )
    t = np.arange(32)
    assert (run(text, np.zeros(32, "u4")) == np.where(t % 4 == 1, t, 0) + 100).all()


def test_lanes_in_different_allocations() -> None:
    """A pointer that depends on the lane: the slow way through several regions, shared memory among them."""
    text = kernel(
        """and.b32 %r1, %t, 1; setp.eq.u32 %p1, %r1, 0; st.shared.u32 [cell], 7;
    mov.u64 %rd3, cell; cvta.shared.u64 %rd4, %rd3; bar.sync 0; setp.eq.u32 %p2, %t, 5;
    selp.u64 %rd1, %x, %o, %p1; selp.u64 %rd1, %rd4, %rd1, %p2; ld.u32 %r2, [%rd1]; add.u32 %r3, %r2, 1;
    bar.sync 0; atom.add.u32 %r4, [%rd1], 1; st.global.u32 [%o], %r4; ret;""",
        ".shared .align 4 .b8 cell[4];",
    )
    x = np.arange(32, dtype="u4") + 100
    got = run(text, x, out=np.arange(32, dtype="u4") + 500)
    expected = np.where(np.arange(32) % 2 == 0, x, np.arange(32) + 500)
    expected[5] = 7
    assert (got == expected).all()


def test_functions() -> None:
    """Calls of one function from two places under divergence, with a scalar, an array and a result."""
    before = """.visible .func (.param .b32 result) twice(.param .b32 value, .param .align 8 .b8 pair[16]);
.func (.param .b32 result) twice(.param .b32 value, .param .align 8 .b8 pair[16])
{ .reg .b32 %r<9>; .reg .b64 %rd<3>; .reg .pred %p;
ld.param.b32 %r1, [value]; ld.param.b32 %r2, [pair+4]; ld.param.b64 %rd1, [pair+8]; cvt.u32.u64 %r3, %rd1;
setp.gt.u32 %p, %r1, 20; @%p bra BIG; add.u32 %r1, %r1, %r1; add.u32 %r1, %r1, %r2; st.param.b32 [result], %r1; ret;
BIG: sub.u32 %r1, %r1, %r3; st.param.b32 [result], %r1; ret; }"""
    call = """{{ .param .b32 p0; .param .align 8 .b8 p1[16]; .param .b32 r0; st.param.b32 [p0], {0};
    st.param.v2.b32 [p1], {{1, 2}}; st.param.b64 [p1+8], 3; call.uni (r0), twice, (p0, p1); ld.param.b32 {0}, [r0]; }}"""
    text = kernel(
        f"""ld.global.u32 %r1, [%x]; and.b32 %r2, %r1, 1; setp.eq.u32 %p1, %r2, 0; @%p1 bra EVEN;
    {call.format("%r1")}
    {call.format("%r1")}
    bra DONE;
    EVEN: {call.format("%r1")}
    DONE: st.global.u32 [%o], %r1; ret;""",
        before,
    )
    f = lambda v: v - 3 if v > 20 else 2 * v + 2
    x = np.arange(64, dtype="u4")
    assert run(text, x, 1, 64).tolist() == [f(v) if v % 2 == 0 else f(f(v)) for v in range(64)]


def test_memory() -> None:
    memory = Memory(limit=1000)
    p, q = memory.allocate(10), memory.allocate(0)
    assert p % 256 == q % 256 == 0
    assert p != q
    assert (memory.size_of(p), memory.size_of(q), memory.in_use) == (10, 0, 10)
    memory.write(p, np.arange(5, dtype="i2")[::-1])
    assert memory.read(p + 2, "i2", 4).tolist() == [3, 2, 1, 0]
    memory.view(p, "u1", 2)[...] = 0
    assert memory.read(p, "i2", 1)[0] == 0
    with pytest.raises(IndexError, match="ends 2 bytes past the allocation of 10 bytes"):
        memory.read(p + 2, "i2", 5)
    with pytest.raises(MemoryError, match="991 bytes more than fit"):
        memory.allocate(991)
    memory.free(p)
    with pytest.raises(ValueError, match="already freed"):
        memory.free(p)
    assert memory.in_use == 0


# Counters ------------------------------------------------------------------------------------------------------------------


def test_coalescing_is_counted() -> None:
    x = np.zeros(4096, "f4")
    near = count("ld.global.f32 %r1, [%x]; st.global.f32 [%o], %r1; ret;", x, 2, 64)
    assert (near.load_sectors, near.load_sectors_ideal, near.global_loaded) == (16, 16, 512)
    assert (near.store_sectors, near.global_stored) == (16, 512)
    far = count("mad.wide.u32 %rd1, %i, 32, %in; ld.global.f32 %r1, [%rd1]; ret;", x, 2, 64)
    assert (far.load_sectors, far.load_sectors_ideal) == (128, 16)
    one = count("ld.global.f32 %r1, [%in]; ret;", x, 1, 64)
    assert (one.load_sectors, one.load_sectors_ideal) == (2, 2)


def test_everything_else_is_counted() -> None:
    body = """mov.u32 %r2, buffer; mad.lo.u32 %r3, %t, 4, %r2; st.shared.u32 [%r3], %t; bar.sync 0; bar.sync 0;
    ld.shared.u32 %r4, [%r3]; shfl.sync.bfly.b32 %r5, %r4, 1, 31, -1; red.global.add.u32 [%out], 1; ret;"""
    c = count(body, np.zeros(64, "u4"), 3, 64, SHARED)
    assert (c.barriers, c.shuffles, c.atomics, c.shared_stored, c.shared_loaded) == (
        6,
        192,
        192,
        768,
        768,
    )
    assert c.opcodes["bar"] == 2 * 6
    assert c.instructions == 6 * (9 + 9)
