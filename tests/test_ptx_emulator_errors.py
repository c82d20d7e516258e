"""Every mistake the PTX emulator must refuse, with the PTX line that makes it (marked `// here`)."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_kernels import kernel, refused, run

from dsl.codegen.cuda.emulator import Memory, PtxError, PtxModule

SHARED = ".shared .align 4 .b8 buffer[256];"
ADDRESS = "mov.u32 %r2, buffer; mad.lo.u32 %r3, %t, 4, %r2; xor.b32 %r4, %t, 1; mad.lo.u32 %r5, %r4, 4, %r2;\n"


def test_out_of_bounds_by_one_element() -> None:
    error = refused(
        kernel("\nld.global.u32 %r1, [%x+4]; // here\nret;"),
        "ends 4 bytes past the allocation of 256 bytes",
        block=64,
    )
    assert error.thread == (63, 0, 0)
    refused(kernel("\nst.global.u32 [%x+4], %t; // here\nret;"), "ends 4 bytes past", block=64)
    refused(
        kernel("\nld.global.u32 %r1, [%in+-4]; // here\nret;"),
        "4 bytes before the allocation|4 bytes past",
    )
    refused(
        kernel("\natom.global.add.u32 %r1, [%x+4], 1; // here\nret;"), "ends 4 bytes past", block=64
    )
    refused(
        kernel("\nld.global.u16 %h1, [%in+9]; // here\nret;"),
        "not aligned to 2",
        x=np.zeros(5, "u2"),
    )
    refused(
        kernel("\nld.global.u32 %r1, [%in+8]; // here\nret;"),
        "ends 2 bytes past",
        x=np.zeros(5, "u2"),
    )


def test_null_unaligned_and_wrong_space() -> None:
    refused(kernel("mov.u64 %rd1, 0;\nld.global.u32 %r1, [%rd1]; // here\nret;"), "is null")
    refused(kernel("mov.u64 %rd1, 0;\nld.u32 %r1, [%rd1+16]; // here\nret;"), "is null")
    refused(kernel("\nld.global.u32 %r1, [%in+2]; // here\nret;"), "not aligned to 4 bytes")
    refused(
        kernel("\nld.global.v4.u32 {%r1,%r2,%r3,%r4}, [%in+8]; // here\nret;"),
        "not aligned to 16 bytes",
    )
    refused(kernel("\nld.shared.u32 %r1, [%in]; // here\nret;", SHARED), "a global address")
    refused(
        kernel("mov.u64 %rd1, buffer;\nld.global.u32 %r1, [%rd1]; // here\nret;", SHARED),
        "out of bounds",
    )
    window = "mov.u64 %rd1, buffer; cvta.shared.u64 %rd1, %rd1;\nld.global.u32 %r1, [%rd1]; // here\nret;"
    refused(kernel(window, SHARED), "generic address of shared memory")
    constant = ".const .align 4 .b8 table[16];"
    refused(
        kernel("mov.u64 %rd1, table;\nst.u32 [%rd1], %t; // here\nret;", constant),
        "store to const memory",
    )
    refused(
        kernel("mov.u64 %rd1, table;\nld.global.u32 %r1, [%rd1]; // here\nret;", constant),
        "out of bounds",
    )


def test_use_after_free() -> None:
    memory = Memory()
    out, x = memory.allocate(128), memory.allocate(128)
    memory.free(x)
    with pytest.raises(PtxError, match=r"memory that was freed \(128 bytes"):
        PtxModule(kernel("ld.global.u32 %r1, [%x]; ret;")).launch(
            memory, "k", (1,), (32,), [out, x, 0]
        )


def test_shared_bounds_and_initialisation() -> None:
    refused(
        kernel(ADDRESS + "ld.shared.u32 %r1, [%r3]; // here\nret;", SHARED),
        "before anything was written",
    )
    refused(
        kernel(ADDRESS + "st.shared.u32 [%r3+256], %t; // here\nret;", SHARED), "past the 256 bytes"
    )
    two = SHARED + "\n.shared .align 4 .b8 other[64];"
    refused(
        kernel(ADDRESS + "st.shared.u32 [%r3+256], %t; // here\nret;", two),
        "outside every variable|past",
    )
    local = ".local .align 4 .b8 depot[16]; mov.u64 %rd1, depot; mad.wide.u32 %rd1, %t, 4, %rd1;\n"
    refused(kernel(local + "st.local.u32 [%rd1], %t; // here\nret;"), "local address")


def test_races_on_shared_memory() -> None:
    read = ADDRESS + "st.shared.u32 [%r3], %t;\nld.shared.u32 %r6, [%r5]; // here\nret;"
    assert "thread (1, 0, 0)" in str(refused(kernel(read, SHARED), "race on shared memory"))
    write = (
        ADDRESS
        + "st.shared.u32 [%r3], %t; bar.sync 0; ld.shared.u32 %r6, [%r3];\nst.shared.u32 [%r5], %t; // here\nret;"
    )
    refused(kernel(write, SHARED), "race on shared memory")
    both = ADDRESS + "\nst.shared.u32 [buffer], %t; // here\nret;"
    refused(kernel(both, SHARED), "race on shared memory")
    atomic = (
        ADDRESS
        + "st.shared.u32 [%r3], 0; bar.sync 0; atom.shared.add.u32 %r6, [%r3], 1;\nld.shared.u32 %r7, [%r5]; // here\nret;"
    )
    refused(kernel(atomic, SHARED), "race on shared memory")
    readers = (
        ADDRESS
        + "st.shared.u32 [%r3], %t; bar.sync 0; ld.shared.u32 %r6, [buffer];\nst.shared.u32 [%r3], %t; // here\nret;"
    )
    refused(kernel(readers, SHARED), "race on shared memory", block=64)


def test_what_is_no_race() -> None:
    same = (
        ADDRESS
        + "st.shared.u32 [buffer], 5; bar.sync 0; ld.shared.u32 %r6, [buffer]; st.global.u32 [%o], %r6; ret;"
    )
    assert (run(kernel(same, SHARED), np.zeros(32, "u4")) == 5).all()
    warp = (
        ADDRESS
        + "st.shared.u32 [%r3], %t; bar.warp.sync -1; ld.shared.u32 %r6, [%r5]; st.global.u32 [%o], %r6; ret;"
    )
    assert (run(kernel(warp, SHARED), np.zeros(32, "u4")) == (np.arange(32) ^ 1)).all()
    unchecked = (
        ADDRESS + "st.shared.u32 [%r3], %t; ld.shared.u32 %r6, [%r5]; st.global.u32 [%o], %r6; ret;"
    )
    assert (
        run(kernel(unchecked, SHARED), np.zeros(32, "u4"), check=False) == (np.arange(32) ^ 1)
    ).all()
    bytes_ = "mov.u64 %rd1, buffer; cvt.u64.u32 %rd2, %t; add.u64 %rd1, %rd1, %rd2; st.shared.u8 [%rd1], %r1; ret;"
    run(kernel("mov.u32 %r1, %t;" + bytes_, SHARED), np.zeros(32, "u4"))


def test_warp_synchronisation_does_not_order_other_warps() -> None:
    text = ADDRESS.replace("xor.b32 %r4, %t, 1", "xor.b32 %r4, %t, 32")
    text += "st.shared.u32 [%r3], %t; bar.warp.sync -1;\nld.shared.u32 %r6, [%r5]; // here\nret;"
    refused(kernel(text, SHARED), "race on shared memory", block=64)


def test_race_on_global_memory() -> None:
    refused(kernel("\nst.global.u32 [%out], %t; // here\nret;"), "race on global memory")
    assert run(kernel("st.global.u32 [%out], 3; ret;"), np.zeros(1, "u4"))[0] == 3


def test_divergent_barriers() -> None:
    half = "setp.lt.u32 %p1, %t, 16; @%p1 bra DONE;\nbar.sync 0; // here\nDONE: ret;"
    assert "16 have finished" in str(refused(kernel(half), "barrier in divergent code: 16 of 32"))
    two = "setp.lt.u32 %p1, %t, 16; @%p1 bra OTHER;\nbar.sync 0; // here\nbra DONE;\nOTHER: bar.sync 0;\nDONE: ret;"
    assert "16 wait at line" in str(refused(kernel(two), "barrier in divergent code"))


def test_absent_lanes() -> None:
    text = "setp.lt.u32 %p1, %t, 16; @%p1 bra DONE;\nshfl.sync.bfly.b32 %r1, %t, 1, 31, -1; // here\nDONE: ret;"
    refused(kernel(text), r"names lanes that are not there: \[0, 1, 2")
    refused(
        kernel("\nvote.sync.ballot.b32 %r1, %p0, -1; // here\nret;".replace("%p0", "1")),
        r"not there: \[20, 21",
        block=20,
    )
    refused(
        kernel("\nshfl.sync.idx.b32 %r1, %t, 0, 31, 2; // here\nret;"),
        "does not name the lane itself",
    )


def test_shuffle_from_a_lane_outside_the_mask() -> None:
    text = "setp.ge.u32 %p1, %t, 16; @%p1 bra DONE;\nshfl.sync.idx.b32 %r1, %t, 20, 31, 0xffff; // here\nDONE: ret;"
    refused(kernel(text), "reads lane 20, which does not take part")


def test_endless_loop_trap_and_undefined_register() -> None:
    refused(kernel("\nHERE: add.u32 %r1, %n, 1; // here\nbra HERE;"), "endless loop", limit=1000)
    refused(kernel("setp.lt.u32 %p1, %t, 3; @!%p1 bra DONE;\ntrap; // here\nDONE: ret;"), "trap")
    text = "setp.gt.u32 %p1, %n, 1000; @!%p1 bra NOT; mov.u32 %r1, 5;\nNOT: add.u32 %r2, %r1, 1; // here\nst.global.u32 [%o], %r2; ret;"
    refused(kernel(text), "%r1 is read before it is written")


def test_unknown_function_is_an_error_when_called() -> None:
    before = ".extern .func mystery(.param .b32 x);"
    text = kernel(
        """setp.gt.u32 %p1, %n, 1000; @!%p1 bra DONE;
    { .param .b32 p0; st.param.b32 [p0], 1;
    call.uni mystery, (p0); // here
    }
    DONE: ret;""",
        before,
    )
    run(text, np.zeros(64, "u4"))
    refused(text, "call of mystery, which is only declared", n=2000)


@pytest.mark.parametrize(
    ("line", "match"),
    [
        ("wgmma.fence.sync.aligned;", "does not know wgmma.fence.sync.aligned"),
        ("add.u32 %r1, %nowhere, 1;", "unknown register %nowhere"),
        ("add.u32 %r1, name, 1;", "unknown name name"),
        ("bra NOWHERE;", "unknown label NOWHERE"),
        ("add.u32 %r1 %r2;", "expected ','"),
        ("add.u32 %h1, %r2, %r3;", "%h1 is narrower"),
    ],
)
def test_unreadable_ptx_names_its_line(line: str, match: str) -> None:
    text = "\n\n" + kernel(f"\n{line} // here\nret;")
    with pytest.raises(PtxError, match=match) as caught:
        PtxModule(text)
    assert "// here" in text.split("\n")[caught.value.line - 1]


def test_launches_are_checked() -> None:
    text = kernel("ret;").replace("in, .param .u32 n)", "in, .param .u32 n)\n.maxntid 64, 1, 1")
    module, memory = PtxModule(text), Memory()
    assert [size for _, _, size in module.kernels["k"].params] == [8, 8, 4]
    with pytest.raises(PtxError, match="65 threads in a block, at most 64"):
        module.launch(memory, "k", (1,), (65,), [0, 0, 0])
    with pytest.raises(PtxError, match="takes 3 arguments, got 1"):
        module.launch(memory, "k", (1,), (1,), [0])
    with pytest.raises(PtxError, match="no kernel 'q'; the module has k"):
        module.launch(memory, "q", (1,), (1,), [])
