"""Micro-kernels of matrix multiplication: one tile of the result, held in registers over a run of the inner dimension.

In: the shape of the tiles that suit a CPU and a dtype. Out: for each tile height a function

    void kernel(i64 depth, ptr a, i64 a_row, i64 a_step, i64 a_ahead, ptr b, i64 b_step, i64 b_ahead,
                ptr c, i64 c_row, i64 rows, iN columns, iN more)

which multiplies `depth` > 0 columns of A by as many rows of B, and fetches what is `a_ahead` and `b_ahead` of them, into the
second and the first cache. Strides are in bytes. A row of B is a row of vectors, the elements of A are broadcast; so A may
have any layout, and packing serves only the caches.
Every element is summed in the order of the inner dimension, whatever the tile's height, so cutting a matrix differently
changes no bit.

With `masks`, the kernel writes its first `rows` rows; `columns` masks the lanes of the last vector of C; `more` is all ones
to add to C, or 0 to overwrite it. Without, it overwrites the whole tile and ignores those three. Either way it reads A for
its full height and B for its full width: a masked load in the loop would take turns with the multiplications.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Tiling", "kernel", "tiling"]


@dataclass(frozen=True)
class Tiling:
    """How matrices of one dtype are cut on one kind of CPU.

    A tile is at most `heights[0]` rows of two vectors of `lanes` elements. One of two vectors has a height of `heights`,
    tallest first; one of a single vector has one of `narrow`. `depth` is the run of the inner dimension for which a panel of
    A stays in the first cache; `depth` rows of `width` columns of B stay in the second.
    """

    type: str  # float or double
    lanes: int
    heights: tuple[int, ...]
    narrow: tuple[int, ...]
    masks: bool
    depth: int
    width: int

    @property
    def size(self) -> int:
        """Bytes of an element."""
        return 4 if self.type == "float" else 8

    @property
    def columns(self) -> int:
        """Columns of a full tile."""
        return 2 * self.lanes

    @property
    def vector(self) -> str:
        return f"<{self.lanes} x {self.type}>"

    @property
    def overload(self) -> str:
        """The end of an intrinsic's name."""
        return f"v{self.lanes}f{8 * self.size}"

    def chosen(self, rows: int, vectors: int) -> int:
        """Return the height of the lowest kernel for some rows."""
        return min(h for h in (self.narrow, self.heights)[vectors - 1] if h >= rows)


# 14 rows of two vectors take 28 of AVX-512's 32 registers, two hold B and one an element of A; 12 of AVX2's 16.
_TILINGS = {
    ("avx512", "float"): Tiling("float", 16, (14, 12, 8, 4), (14, 12, 8, 4), True, 384, 1024),
    ("avx512", "double"): Tiling("double", 8, (14, 12, 8, 4), (14, 12, 8, 4), True, 256, 768),
    ("avx2", "float"): Tiling("float", 8, (6, 4, 2), (6, 2), False, 512, 512),
    ("avx2", "double"): Tiling("double", 4, (6, 4, 2), (6, 2), False, 512, 512),
    ("plain", "float"): Tiling("float", 4, (4, 2), (4,), False, 256, 256),
    ("plain", "double"): Tiling("double", 2, (4, 2), (4,), False, 256, 128),
}


def tiling(cpu: str, type: str) -> Tiling:
    """Return the tiles for `avx512`, `avx2` (with FMA) or `plain` CPUs."""
    return _TILINGS[cpu, type]


def kernel(t: Tiling, name: str, height: int, vectors: int, loop: str) -> str:
    """Return the definition of a micro-kernel; `loop` is the metadata of its loop."""
    I = f"i{t.lanes}"
    grid = [(i, j) for i in range(height) for j in range(vectors)]
    lines = [
        f"define internal void @{name}(i64 %depth, ptr %a, i64 %a_row, i64 %a_step, ptr %b, i64 %b_step, i64 %b_ahead, ptr %c,"
        f' i64 %c_row, i64 %rows, {I} %columns, {I} %more) nounwind "prefer-vector-width"="512" {{',
        "entry:",
        *_masks(t),
        *_row_offsets(height),
        "  br label %loop",
        "loop:",
        "  %k = phi i64 [%depth, %entry], [%k.next, %loop]",
        *(f"  %a{q} = phi ptr [%q{q}, %entry], [%a{q}.next, %loop]" for q in range(0, height, 4)),
        "  %b0 = phi ptr [%b, %entry], [%b0.next, %loop]",
        *(f"  %z{i}.{j} = phi {t.vector} [zeroinitializer, %entry], [%s{i}.{j}, %loop]" for i, j in grid),
        *_step(t, height, vectors),
        *(f"  %a{q}.next = getelementptr i8, ptr %a{q}, i64 %a_step" for q in range(0, height, 4)),
        "  %b0.next = getelementptr i8, ptr %b0, i64 %b_step",
        "  %k.next = add nsw i64 %k, -1",
        "  %again = icmp sgt i64 %k, 1",
        f"  br i1 %again, label %loop, label %end, !llvm.loop {loop}",
        "end:",
        *_end(t, height, vectors),
        "done:",
        "  ret void",
        "}",
    ]  # fmt: skip
    return "\n".join(lines)


def _masks(t: Tiling) -> list[str]:
    return [f"  %mask = bitcast i{t.lanes} %columns to <{t.lanes} x i1>"] if t.masks else []


def _row_offsets(height: int) -> list[str]:
    """Return the strides to the rows of A: a pointer for every fourth row, and offsets to the three after it.

    The empty assembly hides from LLVM how they are related; it would chain them through one register otherwise, an
    addition for each row, which takes longer than the multiplications.
    """
    lines = ["  %q0 = getelementptr i8, ptr %a, i64 0"]
    for r in range(1, min(4, height)):
        lines += [
            f"  %r{r}.plain = mul i64 %a_row, {r}",
            f'  %r{r} = call i64 asm "", "=r,0"(i64 %r{r}.plain)',
        ]
    for q in range(4, height, 4):
        lines += [
            f"  %o{q}.plain = mul i64 %a_row, {q}",
            f'  %o{q} = call i64 asm "", "=r,0"(i64 %o{q}.plain)',
            f"  %q{q} = getelementptr i8, ptr %a, i64 %o{q}",
        ]
    return lines


def _step(t: Tiling, height: int, vectors: int) -> list[str]:
    """Return the multiplication of one column of A by one row of B."""
    V, lines = t.vector, []
    for j in range(vectors):
        lines.append(f"  %pb{j} = getelementptr i8, ptr %b0, i64 {j * t.lanes * t.size}")
        lines.append(_load(t, f"%y{j}", f"%pb{j}", ""))
        lines.append(f"  %ahead{j} = getelementptr i8, ptr %pb{j}, i64 %b_ahead")
        lines.append(f"  call void @llvm.prefetch.p0(ptr %ahead{j}, i32 0, i32 3, i32 1)")
    for i in range(height):
        lines += [
            f"  %pa{i} = getelementptr i8, ptr %a{i - i % 4}, i64 {f'%r{i % 4}' if i % 4 else 0}",
            f"  %x{i} = load {t.type}, ptr %pa{i}",
            f"  %i{i} = insertelement {V} poison, {t.type} %x{i}, i32 0",
            f"  %v{i} = shufflevector {V} %i{i}, {V} poison, <{t.lanes} x i32> zeroinitializer",
            *(
                f"  %s{i}.{j} = call {V} @llvm.fmuladd.{t.overload}({V} %v{i}, {V} %y{j}, {V} %z{i}.{j})"
                for j in range(vectors)
            ),
        ]
    return lines


def _end(t: Tiling, height: int, vectors: int) -> list[str]:
    """Return what adds the sums to C, or writes them to it."""
    rows = [line for i in range(height) for line in _row(t, i, height, vectors)] + [
        "  br label %done"
    ]
    if not t.masks:
        return [line.replace("%u", "%s") for line in rows]
    N = t.lanes
    return [
        f"  %accumulate = icmp ne i{N} %more, 0",
        "  br i1 %accumulate, label %add, label %write",
        *_addition(t, height, vectors),
        "write:",
        *(
            f"  %u{i}.{j} = phi {t.vector} [%s{i}.{j}, %end], [%t{i}.{j}, %add]"
            for i in range(height)
            for j in range(vectors)
        ),
        *rows,
    ]


def _addition(t: Tiling, height: int, vectors: int) -> list[str]:
    """Return the block that adds C to the sums. All of it is read before any is written: rows of a narrow C are so near
    to each other that a load would wait for the store before it."""
    lines, M = ["add:"], f"<{t.lanes} x i1>"
    for i in range(height):
        lines += _address(t, "old", i, vectors)
        masks = [""] * (vectors - 1) + ["%mask"]
        if _optional(t, i, height, vectors):
            lines.append(f"  %within{i} = icmp sgt i64 %rows, {i}")
            masks = [f"%present{i}.{j}" for j in range(vectors)]
            lines += [
                f"  {mask} = select i1 %within{i}, {M} {old or 'splat (i1 true)'}, {M} zeroinitializer"
                for mask, old in zip(masks, [""] * (vectors - 1) + ["%mask"])
            ]
        for j, mask in enumerate(masks):
            lines.append(_load(t, f"%c{i}.{j}", f"%old{i}.{j}", mask))
            lines.append(f"  %t{i}.{j} = fadd {t.vector} %c{i}.{j}, %s{i}.{j}")
    return [*lines, "  br label %write"]


def _row(t: Tiling, i: int, height: int, vectors: int) -> list[str]:
    """Return the lines that write one row of the tile, and leave after it if it may be the last."""
    lines = _address(t, "new", i, vectors)
    for j in range(vectors):
        mask = "%mask" if t.masks and j == vectors - 1 else ""
        lines.append(_store(t, f"%u{i}.{j}", f"%new{i}.{j}", mask))
    if i + 1 < height and _optional(t, i + 1, height, vectors):
        lines += [
            f"  %end{i} = icmp eq i64 %rows, {i + 1}",
            f"  br i1 %end{i}, label %done, label %row{i + 1}",
            f"row{i + 1}:",
        ]
    return lines


def _address(t: Tiling, name: str, i: int, vectors: int) -> list[str]:
    """Return the addresses of one row of C; each row's is made from that of the row before."""
    base = f"%{name}{i}.0"
    start = f"%{name}{i - 1}.0, i64 %c_row" if i else "%c, i64 0"
    lines = [f"  {base} = getelementptr i8, ptr {start}"]
    for j in range(1, vectors):
        lines.append(f"  %{name}{i}.{j} = getelementptr i8, ptr {base}, i64 {j * t.lanes * t.size}")
    return lines


def _optional(t: Tiling, i: int, height: int, vectors: int) -> bool:
    """Whether a kernel is called for fewer than i + 1 rows: not if a lower one would do."""
    return t.masks and i > 0 and t.chosen(i, vectors) == height


def _load(t: Tiling, name: str, address: str, mask: str) -> str:
    if not mask:
        return f"  {name} = load {t.vector}, ptr {address}, align {t.size}"
    return (
        f"  {name} = call {t.vector} @llvm.masked.load.{t.overload}.p0(ptr align {t.size} {address}, "
        f"<{t.lanes} x i1> {mask}, {t.vector} zeroinitializer)"
    )


def _store(t: Tiling, value: str, address: str, mask: str) -> str:
    if not mask:
        return f"  store {t.vector} {value}, ptr {address}, align {t.size}"
    return (
        f"  call void @llvm.masked.store.{t.overload}.p0({t.vector} {value}, ptr align {t.size} {address}, "
        f"<{t.lanes} x i1> {mask})"
    )
