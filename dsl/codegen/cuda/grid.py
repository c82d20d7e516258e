"""Emits a planned kernel for a GPU: the same loop nests as on the CPU, with a grid in the place of the outer loops.

Three shapes, chosen by what is reduced and how memory is walked through:
- maps: each thread computes some neighbouring points, so that what it reads and writes are whole vectors;
- tiles: where an array is read along another axis than the result is written, square tiles pass through shared memory;
- rows: teams of threads sweep rows, stage by stage, and unite what they have found (`teams`). A row that is short enough
  is read once and kept in registers for all stages. One that is very long, while there are few, is cut into chunks: the
  partial results go to memory, and a second kernel unites them. Where rows share something, a block takes many (`held`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from dsl.codegen import elementwise
from dsl.codegen.accesses import start_value, stride_of, walk
from dsl.codegen.arrays import Array, Scalar, load_scalar, store_scalar
from dsl.codegen.cuda.held import Held, loads_of, plan_holding, rows_wanted, shared_by_rows
from dsl.codegen.cuda.source import Source
from dsl.codegen.cuda.teams import WARP, Team, most_memory, power_of_two, unite
from dsl.codegen.evaluate import Evaluator, literal, select_scalar
from dsl.codegen.expressions import Expression
from dsl.codegen.kernels import KernelEmitter
from dsl.codegen.llvm import Operand, Value, read
from dsl.codegen.plan import Kernel, Root, Stage, reads_of
from dsl.ir import graph as ir
from dsl.ir.dims import DimLike, dim_max, dim_min
from dsl.ir.types import size_of

__all__ = ["BLOCK", "Geometry", "GridEmitter", "ceil_div", "needs_memory"]

BLOCK = 256
"""Threads of a block where nothing speaks for another number."""

_VECTOR = 16  # bytes that a thread reads at once
_MOST = 8  # points that a thread computes side by side
_LONG = 40  # ops beyond which it computes at most two
_KEPT = 32  # numbers that a thread keeps of its row
_TILE = 32
_SECTOR = 32  # bytes that memory moves at least
_FEW_BLOCKS = 128  # fewer leave a large GPU idle
_FEW_LARGE_BLOCKS = (
    40  # the same of blocks that are as large as can be, each of which has much under way
)
_CHUNK = 1 << 14  # points of a chunk, at least
_CHUNKS = 1 << 10  # chunks of a row, at most
_SHARING = 4  # rows, at least, that read what they share through shared memory
_WORDS = {1024: 16, 512: 48}  # registers for kept numbers that a thread of such a block has


@dataclass(frozen=True)
class Geometry:
    """The blocks of a launch, as sizes that the run knows, and the threads of a block."""

    grid: tuple[DimLike, DimLike]
    block: int


def ceil_div(a: DimLike, b: DimLike) -> DimLike:
    return (a + (b - 1)) // b


def needs_memory(kernel: Kernel, root: Root) -> bool:
    """Tell whether a value of a row is read at another place of the row, by another thread, that is."""
    if root.reduce or kernel.stages[root.stage].per_row:
        return False
    return any(
        e.value is root.value and e.index != root.index
        for other in kernel.roots
        for e in reads_of(other.expression)
    )


class GridEmitter(KernelEmitter):
    """Emits one kernel. `stores` holds where roots go that others read; `partials` those of a row that is cut."""

    host: Source

    def __init__(self, source: Source, kernel: Kernel, stores: dict[ir.Value, Array]) -> None:
        super().__init__(source, kernel, stores)
        self.source, self.fn = source, source.fn
        self.results: dict[ir.Value, Scalar] = {}
        self.resident = False
        self.partials: dict[ir.Value, ir.Value] = {}
        self.held: Held | None = None
        self.roomy = False
        self.may_cut = len(kernel.stages) == 1

    def short_axis(self) -> int | None:
        return None

    def emit_grid(self, partials: dict[ir.Value, ir.Value] | None = None) -> Geometry:
        """Emit the kernel and return its launch; with `partials`, chunks of rows go there."""
        self.partials = partials or {}
        if self.checks:
            self.flag = self.source.flag()
        if not self.inner:
            geometry = self.grid_map()
        else:
            geometry = self.grid_rows()
        self.finish_checks(self.fn)
        self.source.finish(geometry.block, roomy=self.roomy)
        return geometry

    # -- maps --------------------------------------------------------------------------------------------------------

    def grid_map(self) -> Geometry:
        fn, groups = self.fn, self.merged(range(len(self.kernel.variables)))
        tile = self.tiled_axis(groups)
        if tile is not None:
            return self.grid_tiles(groups, tile)
        vector = self.vector(groups)
        total = size_of(self.kernel.space)
        if len(groups) > 1 and not self._divides(groups[-1], vector):
            vector = 1
        thread = fn.add(fn.mul(self.source.index("ctaid.x"), BLOCK), self.source.index("tid.x"))
        start = fn.as_value(fn.mul(thread, vector), "i64")
        count = self.host.dim(total)
        everything = [root.expression for root in self.kernel.roots]
        shared = self.evaluator(fn)
        self.hoist(shared, everything)

        def points(first: Operand, count: int) -> None:
            made = [self._at(shared, groups, first, k) for k in range(count)]
            self.read_ahead(made, everything)
            values = [[e.value(x) for x in everything] for e in made]
            for evaluator, found in zip(made, values, strict=True):
                self.store_all(evaluator, found)

        if isinstance(total, int) and total % (BLOCK * vector) == 0:
            points(start, vector)
        elif vector == 1 or (isinstance(total, int) and total % vector == 0):
            with fn.if_(fn.compare("slt", start, count)):
                points(start, vector)
        else:
            full = fn.compare("sle", fn.add(start, vector), count)

            def tail() -> None:
                with fn.loop(start, count) as at:
                    points(at, 1)

            fn.if_else(full, lambda: points(start, vector), tail)
        return Geometry((ceil_div(total, BLOCK * vector), 1), BLOCK)

    def _divides(self, group: Sequence[int], number: int) -> bool:
        extent = size_of(tuple(self.kernel.variables[k].extent for k in group))
        return isinstance(extent, int) and extent % number == 0

    def _at(
        self, shared: Evaluator, groups: list[list[int]], at: Operand, further: int = 0
    ) -> Evaluator:
        """Return an evaluator at one point, or so much further along the last axis, which knows what all points share."""
        made = Evaluator(
            self.fn, self.host, dict(shared.points), [*shared.scopes, {}], shared.on_bad, shared.metadata
        )  # fmt: skip
        made.fetch = partial(self.fetch, made)
        if groups:
            self.unflatten(made, groups, at)
            if further:
                made.shifts[self.kernel.variables[groups[-1][-1]]] = further
        return made

    def fetch(self, evaluator: Evaluator, e: Expression) -> Scalar | None:
        """Return a value that this kernel computes, if it need not be loaded."""
        root = self.roots.get(e.value)  # type: ignore[arg-type]
        if root is None:
            return None
        if root.value in self.results:
            return self.results[root.value]
        if e.index != root.index:
            return None
        if root.stage < self.current and root.value in self.stores and not self.resident:
            return None  # this thread has stored it before
        return evaluator.value(root.expression)

    def store_all(self, evaluator: Evaluator, values: Sequence[Scalar]) -> None:
        for root, value in zip(self.kernel.roots, values, strict=True):
            if root.value in self.stores:
                address = evaluator.address(self.stores[root.value], root.index)
                store_scalar(self.fn, root.value.dtype, value, address)

    def read_ahead(
        self, evaluators: Sequence[Evaluator], expressions: Sequence[Expression], held: Held | None = None
    ) -> None:  # fmt: skip
        """Load for all points what is surely read, so that neighbours become one access."""
        loads = {
            e: None
            for x in expressions
            for e in walk(x)
            if e.kind == "load" and not any(i.extra for i in e.index) and e.value not in self.roots
        }
        if held is not None:
            wanted = loads_of(expressions, held.places)
            loads = {e: None for e in loads if e in wanted}
        for e in loads:
            for evaluator in evaluators:
                evaluator.value(e)

    def vector(self, groups: Sequence[Sequence[int]]) -> int:
        """Return how many neighbouring points of the last axes a thread takes: as many as it can read at once."""
        if not groups:
            return 1
        last = self.kernel.variables[groups[-1][-1]]
        widest, moving = 1, False
        for index, array in self.accesses():
            if array is None:
                if any(last in item.vars for i in index for item, _ in i.extra):
                    return 1
                continue
            stride = stride_of(index, array, last)
            if stride not in (0, 1) or not self._aligned(index, array, last):
                return 1
            if stride == 1:
                moving, widest = True, max(widest, array.dtype.itemsize)
        if not moving:
            return 1
        ops = {e for root in self.kernel.roots for e in walk(root.expression) if e.kind == "op"}
        most = 2 if len(ops) > _LONG else _MOST
        found = max(1, min(most, _VECTOR // widest))
        total = size_of(self.kernel.space)
        return 1 if isinstance(total, int) and total < 8 * BLOCK else found

    def _aligned(self, index: Any, array: Array, last: Any) -> bool:
        """Tell whether vectors of an access begin at multiples of their size: no offset, and whole rows of vectors."""
        if stride_of(index, array, last) == 0:
            return True
        place: DimLike = 0
        for i, stride in zip(index, array.strides, strict=True):
            known = stride if isinstance(stride, int) else getattr(stride, "dim", None)
            if i.extra or known is None:
                return False
            place = place + known * i.offset
        width = _VECTOR // array.dtype.itemsize
        return isinstance(place, int) and (width == 0 or place % max(1, width) == 0)

    # -- tiles -------------------------------------------------------------------------------------------------------

    def grid_tiles(self, groups: list[list[int]], tile: int) -> Geometry:
        fn, source = self.fn, self.source
        outer = [g for k, g in enumerate(groups[:-1]) if k != tile]
        across, along = groups[tile], groups[-1]
        high, wide = (self._size(g) for g in (across, along))
        down, over = ceil_div(high, _TILE), ceil_div(wide, _TILE)
        block = source.index("ctaid.x")
        left = fn.mul(fn.binary("urem", block, self.host.dim(over)), _TILE)
        rest = fn.binary("udiv", block, self.host.dim(over))
        top = fn.mul(fn.binary("urem", rest, self.host.dim(down)), _TILE)
        thread = source.index("tid.x")
        x, y = fn.binary("and", thread, _TILE - 1), fn.binary("lshr", thread, 5)
        shared = self.evaluator(fn)
        if outer:
            self.unflatten(shared, outer, fn.binary("udiv", rest, self.host.dim(down)))
        everything = [root.expression for root in self.kernel.roots]
        self.hoist(shared, everything)
        turned = {
            e: source.shared(_TILE * (_TILE + 1) * e.dtype.itemsize)
            for e in dict.fromkeys(x for r in self.kernel.roots for x in walk(r.expression))
            if self._is_turned(e, across, along)
        }
        share = _TILE * _TILE // BLOCK

        def each(body: Any, swap: bool) -> None:
            for k in range(share):
                slow = fn.add(y, k * (_TILE // share))
                i, j = (x, slow) if swap else (slow, x)
                down_at, along_at = fn.add(top, i), fn.add(left, j)
                inside = fn.both(
                    fn.compare("slt", down_at, self.host.dim(high)),
                    fn.compare("slt", along_at, self.host.dim(wide)),
                )
                with fn.if_(inside):
                    made = self._at(shared, [], 0)
                    self.place(made, across, down_at)
                    self.place(made, along, along_at)
                    body(made, i, j)

        def place_of(e: Expression, i: Operand, j: Operand) -> Value:
            at = fn.add(fn.mul(j, _TILE + 1), i)
            return fn.gep(turned[e], fn.mul(at, e.dtype.itemsize))

        def fill(made: Evaluator, i: Operand, j: Operand) -> None:
            values = [made.value(e) for e in turned]
            for e, value in zip(turned, values, strict=True):
                store_scalar(fn, e.dtype, value, place_of(e, i, j))

        def use(made: Evaluator, i: Operand, j: Operand) -> None:
            own = made.fetch

            def fetch(e: Expression) -> Scalar | None:
                return load_scalar(fn, e.dtype, place_of(e, i, j)) if e in turned else own(e)

            made.fetch = fetch
            self.store_all(made, [made.value(x) for x in everything])

        each(fill, swap=True)
        source.barrier()
        each(use, swap=False)
        total: DimLike = down * over
        for g in outer:
            total = total * self._size(g)
        return Geometry((total, 1), BLOCK)

    def _size(self, group: Sequence[int]) -> DimLike:
        return size_of(tuple(self.kernel.variables[k].extent for k in group))

    def _is_turned(self, e: Expression, across: Sequence[int], along: Sequence[int]) -> bool:
        if e.kind != "load" or e.value in self.roots or any(i.extra for i in e.index):
            return False
        array = self.host.array(e.value)  # type: ignore[arg-type]
        var, last = (self.kernel.variables[g[-1]] for g in (across, along))
        return stride_of(e.index, array, var) == 1 and stride_of(e.index, array, last) not in (0, 1)

    # -- rows --------------------------------------------------------------------------------------------------------

    def team(self) -> Team:
        """Choose how rows are swept, and how many a block takes."""
        team, swept = self._team(), frozenset(self.kernel.variables[k] for k in self.inner)
        found = shared_by_rows(self.kernel, swept)
        if not found or team.chunk is not None:
            return team
        width = team.threads * team.vector
        taken = most_memory(team, (r.value.dtype for r in self.kernel.roots if r.reduce))
        groups = self.merged(sorted(self.inner))
        holding = plan_holding(self.kernel, found, groups, width, taken)
        if holding is None:
            return team
        wanted = rows_wanted(self.kernel, found, self.stores, swept)
        many, rows = self._take_rows(replace(team, holding=holding), wanted), self._size(self.kept)
        few = isinstance(rows, int) and rows < _SHARING
        if few or (team.along and (many.rows, many.trips) == (team.rows, 1)):
            return team
        return many

    def _take_rows(self, team: Team, wanted: int) -> Team:
        """Let blocks take rows, side by side and one after another, until they are as many as wanted or blocks are few."""
        rows, most, teams = self._size(self.kept), self._most_threads(team), team.rows
        if not isinstance(rows, int) or rows >= 2 * _FEW_BLOCKS * wanted:
            most = max(BLOCK, most // 2)  # a block works while another one waits
        while team.along and 2 * teams * team.threads <= most and not self._few(rows, 2 * teams):
            teams *= 2
        if wanted <= teams:
            return replace(team, rows=teams)
        is_large = replace(team, rows=teams).block >= 1024
        few = _FEW_LARGE_BLOCKS if is_large else _FEW_BLOCKS
        trips = dim_min(-(-wanted // teams), rows // (teams * few))
        return replace(team, rows=teams, trips=dim_max(1, trips))

    def _most_threads(self, team: Team) -> int:
        """Return how large a block may be without its threads running out of registers."""
        size = max(e.dtype.itemsize for root in self.kernel.roots for e in walk(root.expression))
        numbers = team.vector * (team.steps or 1) * max(1, self._read_again())
        ops = {e for root in self.kernel.roots for e in walk(root.expression) if e.kind == "op"}
        assert team.holding is not None
        simple = len(ops) <= _LONG and size <= 4 and team.holding.reach is None
        for block, words in _WORDS.items():
            if numbers * -(-size // 4) <= words and (block < 1024 or simple):
                return block
        return BLOCK

    def _team(self) -> Team:
        rows = size_of(tuple(self.kernel.variables[k].extent for k in self.kept))
        length = size_of(tuple(self.kernel.variables[k].extent for k in sorted(self.inner)))
        swept = self.merged(sorted(self.inner))
        if len(self.kernel.variables) - 1 not in self.inner:
            return self._team_across(rows, length)
        vector = self.vector(swept)
        if not self._divides(swept[-1], vector) or not isinstance(length, int):
            vector = 1
        if not isinstance(length, int):
            chunk = _CHUNK * 4 if self.may_cut and self._few(rows, 1) else None
            return Team(128, 1, True, chunk=chunk)
        units = length // vector
        if units <= 4 * WARP:
            threads = min(WARP, power_of_two(units))
        else:
            threads = max(2 * WARP, min(512, power_of_two(-(-units // 4))))
        in_block = max(1, 128 // threads)
        if self.may_cut and length >= 2 * _CHUNK and self._few(rows, in_block):
            step = vector * BLOCK
            chunk = max(_CHUNK, -(-length // _CHUNKS))
            return Team(BLOCK, 1, True, vector, chunk=-(-chunk // step) * step)
        steps = -(-units // threads)
        keeps = steps * vector * max(1, self._read_again()) <= _KEPT
        return Team(threads, in_block, True, vector, steps if keeps else None)

    def _team_across(self, rows: DimLike, length: DimLike) -> Team:
        if not isinstance(length, int):
            return Team(8, WARP, False)
        narrow = max(4, _SECTOR // max(r.value.dtype.itemsize for r in self.kernel.roots))
        steps = -(-length // (1024 // narrow))
        if self._read_again() and steps * self._read_again() <= _KEPT:
            threads = min(1024 // narrow, max(8, power_of_two(-(-length // 8))))
            return Team(threads, narrow, False, steps=-(-length // threads))
        threads = min(16, power_of_two(-(-length // 4)))
        if self.may_cut and length >= 512 and self._few(rows, WARP):
            return Team(8, WARP, False, chunk=max(256, -(-length // 64)))
        return Team(threads, WARP if threads * WARP >= 64 else 64, False)

    def _read_again(self) -> int:
        """Return how many arrays more than one stage reads."""
        stages: dict[Expression, set[int]] = {}
        for root in self.kernel.roots:
            for e in walk(root.expression):
                if e.kind == "load" and e.value not in self.roots:
                    stages.setdefault(e, set()).add(root.stage)
        return sum(len(found) > 1 for found in stages.values())

    @staticmethod
    def _few(rows: DimLike, in_block: int) -> bool:
        return isinstance(rows, int) and -(-rows // in_block) < _FEW_BLOCKS

    def chunks(self) -> DimLike | None:
        """Return into how many chunks each row is cut, or None."""
        team = self.team()
        if team.chunk is None:
            return None
        length = size_of(tuple(self.kernel.variables[k].extent for k in sorted(self.inner)))
        assert isinstance(team.chunk, int)
        return ceil_div(length, team.chunk)

    def grid_rows(self) -> Geometry:
        fn, source, team = self.fn, self.source, self.team()
        self.swept = self.merged(sorted(self.inner))
        rows = size_of(tuple(self.kernel.variables[k].extent for k in self.kept))
        self.length = size_of(tuple(self.kernel.variables[k].extent for k in sorted(self.inner)))
        thread = source.index("tid.x")
        if team.along:
            member = fn.binary("and", thread, team.threads - 1)
            slot = fn.binary("udiv", thread, team.threads)
        else:
            member = fn.binary("udiv", thread, team.rows)
            slot = fn.binary("and", thread, team.rows - 1)
        self.member = member
        if team.holding is not None:
            self.held, self.roomy = Held(source, self.kernel, team.holding), team.along
            self.held.fill(team.block, team.vector, partial(self._at, self.evaluator(fn)))
        if isinstance(team.trips, int) and team.trips == 1:
            self._block_rows(team, fn.mul(source.index("ctaid.x"), team.rows), slot)
        else:
            self._trips(team, slot)
        chunks, taken = self.chunks(), team.rows * team.trips
        return Geometry((ceil_div(rows, taken), 1 if chunks is None else chunks), team.block)

    def _trips(self, team: Team, slot: Value) -> None:
        """Go through a block's rows; all of its threads make as many trips."""
        fn, source = self.fn, self.source
        rows, taken = self.host.dim(self._size(self.kept)), self.host.dim(team.rows * team.trips)
        low = fn.mul(source.index("ctaid.x"), taken)
        high = fn.minimum(fn.add(low, taken), rows)
        once = source.module.metadata('!{!"llvm.loop.unroll.disable"}')
        with fn.loop(
            low, high, team.rows, metadata=source.module.metadata(f"distinct !{{%self, {once}}}")
        ) as at:
            before = source.barriers
            self._block_rows(team, at, slot)
            if source.barriers - before == 1:
                source.barrier()  # the next trip writes where this one's results are read

    def _block_rows(self, team: Team, at: Operand, slot: Value) -> None:
        """Sweep the rows that a block has at a time, from one on."""
        fn, source, kept = self.fn, self.source, self.merged(self.kept)
        rows = self._size(self.kept)
        row: Operand = fn.add(at, slot)
        self.inside: Value | None = None
        if not (isinstance(rows, int) and rows % team.rows == 0):
            self.inside = fn.compare("slt", row, self.host.dim(rows))
            row = fn.minimum(row, fn.sub(self.host.dim(rows), 1))
        self.at_row, self.first = row, fn.compare("eq", self.member, 0)
        shared = self.evaluator(fn)
        shared.fetch = partial(self.fetch, shared)
        if kept:
            self.unflatten(shared, kept, row)
        self.resident = team.steps is not None
        made = self._points(shared, team) if self.resident else []
        for number, stage in enumerate(self.kernel.stages):
            self.current = number
            if stage.per_row:
                for root in stage.roots:
                    self.results[root.value] = shared.value(root.expression)
                    self._store_once(shared, root)
                continue
            self._sweep(shared, stage, team, made, slot)
            if any(needs_memory(self.kernel, root) for root in stage.roots):
                source.barrier()

    def _points(self, shared: Evaluator, team: Team) -> list[tuple[Evaluator, Value | None]]:
        """Return evaluators for all points of a thread's row, each with whether it is one."""
        fn, made = self.fn, []
        assert team.steps is not None
        assert isinstance(self.length, int)
        masked = team.steps * team.threads * team.vector != self.length
        width = team.threads * team.vector
        start = fn.mul(self.member, team.vector)
        for step in range(team.steps):
            base, offset, inside = start, step * width, None
            if masked and offset + width > self.length:
                inside = fn.compare("slt", start, self.length - offset)
                base = fn.minimum(start, self.length - team.vector - offset)
            for k in range(team.vector):
                at = fn.add(base, offset + k)
                made.append((self._at(shared, self.swept, at), inside))
        return made

    def _sweep(
        self, shared: Evaluator, stage: Stage, team: Team,
        made: Sequence[tuple[Evaluator, Value | None]], slot: Value,
    ) -> None:  # fmt: skip
        """Go through the rows once; all threads then have what was reduced."""
        fn, reduces = self.fn, [root for root in stage.roots if root.reduce]
        sums = {root: self.accumulator(fn, root) for root in reduces}
        expressions = [root.expression for root in stage.roots]
        self.hoist(shared, expressions)
        if made:
            self._kept_points(stage, team, sums, made)
        else:
            low, high = self._ends(team)
            first = fn.add(low, fn.mul(self.member, team.vector))
            if self.held is not None:
                first = self._held_points(shared, stage, team, sums, first, high)
            if self.held is None or self.held.reach is not None:
                self._swept_points(shared, stage, team, sums, (first, high), None)
        items = [
            (root.value.dtype, read(sums[root]), partial(self._combine, root)) for root in reduces
        ]
        for root, total in zip(
            reduces, unite(self.source, team, self.member, slot, items), strict=True
        ):
            self.results[root.value] = total
            self._store_once(shared, root)

    def _kept_points(
        self, stage: Stage, team: Team, sums: dict[Root, Any], made: Sequence[tuple[Evaluator, Value | None]]
    ) -> None:  # fmt: skip
        """Go through points that a thread keeps; what rows share is taken when its turn comes."""
        expressions = [root.expression for root in stage.roots]
        self.read_ahead([e for e, _ in made], expressions, self.held)
        width = team.threads * team.vector
        for step in range(0, len(made), team.vector):
            points = made[step : step + team.vector]
            if self.held is not None:
                reach, end = self.held.reach, (step // team.vector + 1) * width
                take = self.held.take if reach is None or end <= reach else self.read_ahead
                take([e for e, _ in points], expressions)
            for evaluator, inside in points:
                self._point(evaluator, stage, sums, inside)

    def _swept_points(
        self, shared: Evaluator, stage: Stage, team: Team, sums: dict[Root, Any],
        ends: tuple[Operand, Operand], held: Held | None,
    ) -> None:  # fmt: skip
        """Go through points one step after another."""
        fn, expressions = self.fn, [root.expression for root in stage.roots]
        with fn.loop(*ends, team.threads * team.vector) as at:
            points = [self._at(shared, self.swept, fn.add(at, k)) for k in range(team.vector)]
            self.read_ahead(points, expressions, held)
            if held is not None:
                held.take(points, expressions)
            for evaluator in points:
                self._point(evaluator, stage, sums, None)

    def _held_points(
        self, shared: Evaluator, stage: Stage, team: Team, sums: dict[Root, Any], first: Operand, high: Operand
    ) -> Operand:  # fmt: skip
        """Go through the points for which there is what is held; return the first one beyond."""
        assert self.held is not None
        reach = self.held.reach
        end = high if reach is None else self.fn.minimum(high, reach)
        self._swept_points(shared, stage, team, sums, (first, end), self.held)
        return self.fn.add(first, reach or 0)

    def _ends(self, team: Team) -> tuple[Operand, Operand]:
        """Return where a block's part of the rows begins and ends."""
        length = self.host.dim(self.length)
        if team.chunk is None:
            return 0, length
        assert isinstance(team.chunk, int)
        low = self.fn.mul(self.source.index("ctaid.y"), team.chunk)
        return low, self.fn.minimum(self.fn.add(low, team.chunk), length)

    def _combine(self, root: Root, a: Scalar, b: Scalar) -> Scalar:
        name, dtype = root.node.op.name, root.value.dtype
        return elementwise.combine(self.fn, name, dtype, a, b, reassociate=False)

    def _point(
        self, evaluator: Evaluator, stage: Stage, sums: dict[Root, Any], inside: Value | None
    ) -> None:
        """One point: add up what is reduced, store what others read."""
        fn = self.fn
        for root in stage.roots:
            value = evaluator.value(root.expression)
            if root.reduce:
                start = literal(start_value(root.node.op.name, root.value.dtype), root.value.dtype)
                one = value if inside is None else select_scalar(fn, inside, value, start)
                both = self._combine(root, read(sums[root]), one)
                for variable, part in zip(
                    sums[root], both if isinstance(both, tuple) else (both,), strict=True
                ):
                    variable.set(part)
            elif root.value in self.stores:
                self._store_if(self._both(inside, self.inside), evaluator, root, value)

    def _store_once(self, evaluator: Evaluator, root: Root) -> None:
        """Let one thread of a team store what the row has."""
        fn, value = self.fn, self.results[root.value]
        if root.value in self.partials:
            array = self.source.place(self.partials[root.value])
            chunks = self.chunks()
            assert chunks is not None
            at = fn.add(fn.mul(self.at_row, self.host.dim(chunks)), self.source.index("ctaid.y"))
            with fn.if_(self._both(self.first, self.inside) or self.first):
                address = Array(array.dtype, array.pointer, (0,), (1,)).address(fn, (at,))
                store_scalar(fn, root.value.dtype, value, address)
        elif root.value in self.stores:
            self._store_if(self._both(self.first, self.inside), evaluator, root, value)

    def _both(self, a: Value | None, b: Value | None) -> Value | None:
        if a is None or b is None:
            return a or b
        return self.fn.both(a, b)

    def _store_if(
        self, condition: Value | None, evaluator: Evaluator, root: Root, value: Scalar
    ) -> None:
        address = evaluator.address(self.stores[root.value], root.index)
        if condition is None:
            store_scalar(self.fn, root.value.dtype, value, address)
            return
        with self.fn.if_(condition):
            store_scalar(self.fn, root.value.dtype, value, address)
