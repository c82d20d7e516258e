"""Which registers a block must hand on, and which are written on every way to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsl.codegen.cuda.emulator.blocks import Block
from dsl.codegen.cuda.emulator.syntax import Register

if TYPE_CHECKING:
    from dsl.codegen.cuda.emulator.emitter import Emitter
    from dsl.codegen.cuda.emulator.program import Program

__all__ = ["Flow"]


class Flow:
    """Facts for each block: `live` (register indices needed at its start), `assigned` (registers surely written).

    A call goes on to the callee and, for `assigned`, also straight to the block after the call.
    """

    def __init__(self, program: Program, emitters: list[Emitter]) -> None:
        self.program = program
        self.defined = [set(emitter.defined) for emitter in emitters]
        uses = [set(emitter.uses) for emitter in emitters]
        self.sites: dict[str, list[int]] = {}
        for block in program.blocks:
            if block.exit.kind == "call":
                self.sites.setdefault(block.exit.callee, []).append(block.exit.targets[0])
        self.live_sets = self._live(uses)
        self.live = [sorted(program.index(r) for r in live) for live in self.live_sets]
        self.assigned = self._assigned()

    def successors(self, block: Block) -> list[int]:
        """Where lanes may go after a block."""
        exit = block.exit
        if exit.kind == "call":
            entry = self.program.entries.get(exit.callee)
            return [] if entry is None else [entry]
        if exit.kind == "return":
            return self.sites.get(block.function.name, [])
        return exit.targets

    def stored(self, number: int) -> list[Register]:
        """The registers a block writes that someone reads later."""
        after: set[Register] = set()
        for target in self.successors(self.program.blocks[number]):
            after |= self.live_sets[target]
        return [r for r in self.defined[number] if r in after]

    def _live(self, uses: list[set[Register]]) -> list[set[Register]]:
        live = [set(u) for u in uses]
        changed = True
        while changed:
            changed = False
            for block in reversed(self.program.blocks):
                i = block.number
                after: set[Register] = set()
                for target in self.successors(block):
                    after |= live[target]
                new = uses[i] | (after - self.defined[i])
                if len(new) != len(live[i]):
                    live[i] = new
                    changed = True
        return live

    def _assigned(self) -> list[set[Register]]:
        blocks = self.program.blocks
        assigned: list[set[Register] | None] = [None] * len(blocks)
        kernel = self.program.entries[self.program.kernel.name]
        assigned[kernel] = set()
        work = [kernel]
        while work:
            i = work.pop()
            known = assigned[i]
            assert known is not None
            after = known | self.defined[i]
            targets = list(self.successors(blocks[i]))
            if blocks[i].exit.kind == "call":
                callee = blocks[i].exit.callee
                for b in blocks:
                    if b.function.name == callee and b.exit.kind == "return":
                        after = after | self.defined[b.number]
                targets.append(blocks[i].exit.targets[0])
            elif blocks[i].exit.kind == "return":
                targets = []
            for target in targets:
                old = assigned[target]
                new = after if old is None else old & after
                if old is None or len(new) != len(old):
                    assigned[target] = new
                    work.append(target)
        return [known if known is not None else set() for known in assigned]
