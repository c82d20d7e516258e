"""Running a chunk: which lanes go next.

Lanes wait at the heads of blocks. The lowest block with lanes that may enter runs first, with all lanes that wait
there, so that lanes which parted meet again at the first place where their ways join. Before a block that begins with
a barrier (or a warp instruction) lanes may enter when all threads of their block (all lanes of their member mask) are
there. When nobody may enter, the lanes that wait can never meet: that is the error "barrier in divergent code".
"""

from __future__ import annotations

import sys
from typing import Any, NoReturn

import numpy as np

from dsl.codegen.cuda.emulator.blocks import Block
from dsl.codegen.cuda.emulator.chunk import Chunk
from dsl.codegen.cuda.emulator.errors import PtxError
from dsl.codegen.cuda.emulator.exchange import present
from dsl.codegen.cuda.emulator.groups import Group, join
from dsl.codegen.cuda.emulator.program import Program
from dsl.codegen.cuda.emulator.syntax import Immediate, Instruction, Register

__all__ = ["run_chunk"]

Array = np.ndarray[Any, Any]
_FAIR = 1024


def run_chunk(program: Program, chunk: Chunk, limit: int) -> None:
    """Run all lanes of a chunk to their end."""
    _Scheduler(program, chunk, limit).run()


class _Scheduler:
    def __init__(self, program: Program, chunk: Chunk, limit: int) -> None:
        self.program, self.chunk, self.limit = program, chunk, limit
        self.waiting: dict[int, list[Group]] = {}
        self.count = self.choices = 0
        self.names = [
            [i.opcode for i in b.instructions] + ([b.last.opcode] if b.last else [])
            for b in program.blocks
        ]

    def run(self) -> None:
        geometry = self.chunk.geometry
        registers: list[Any] = [None] * self.program.registers
        first = Group(self.chunk, geometry.lane, registers)
        self.waiting[self.program.entries[self.program.kernel.name]] = [first]
        while self.waiting:
            number, group = self.choose()
            self.follow(number, group)

    def follow(self, number: int, group: Group) -> None:
        """Run a block, and go on with the next one as long as the group stays whole and nobody else waits."""
        blocks, run, counters = self.program.blocks, self.program.run, self.chunk.counters
        while True:
            self.count += 1
            if self.count > self.limit:
                what = f"more than {self.limit} blocks were executed: an endless loop?"
                self.chunk.fail(blocks[number].line, what, int(group.lanes[0]))
            try:
                outcome = run[number](group, group.registers)
            except PtxError:
                raise
            except Exception as error:
                raise self.internal(error, number) from error
            if counters is not None:
                counters.ran(group, self.names[number])
            block = blocks[number]
            target = self.leave(block, group, outcome)
            if target < 0:
                return
            if self.waiting or blocks[target].meets:
                self.waiting.setdefault(target, []).append(group)
                return
            number = target

    def leave(self, block: Block, group: Group, outcome: Any) -> int:
        """The one block where the whole group goes, or -1 when it parted or ended."""
        exit = block.exit
        if exit.kind == "goto":
            return exit.targets[0]
        if exit.kind == "if":
            return self.branch(block, group, outcome)
        if exit.kind == "exit":
            self.chunk.finished[group.lanes] = True
            return -1
        if exit.kind == "call":
            return self.program.entries[exit.callee]
        return self.switch(block, group, outcome)

    def branch(self, block: Block, group: Group, predicate: Array) -> int:
        yes, no = block.exit.targets
        if not block.exit.sense:
            yes, no = no, yes
        if predicate.shape[0] == 1:
            return yes if predicate[0] else no
        taken = np.count_nonzero(predicate)
        if taken == 0 or taken == group.n:
            return yes if taken else no
        self.part(group, predicate.nonzero()[0], yes)
        self.part(group, (~predicate).nonzero()[0], no)
        return -1

    def part(self, group: Group, positions: Array, target: int) -> None:
        if (
            self.program.blocks[target].exit.kind == "exit"
            and not self.program.blocks[target].instructions
        ):
            self.chunk.finished[group.lanes[positions]] = True
            return
        piece = group.select(positions, self.program.flow.live[target])
        self.waiting.setdefault(target, []).append(piece)

    def switch(self, block: Block, group: Group, index: Array) -> int:
        """brx.idx, or the return from a function, where the register holds the number of a block."""
        targets = block.exit.targets
        if block.exit.kind == "switch":
            worst = int(index.max())
            if worst >= len(targets):
                what = f"brx.idx with index {worst} of {len(targets)} targets"
                self.chunk.fail(
                    block.last or block.line, what, int(group.lanes[int(index.argmax())])
                )
            index = np.array(targets, np.int64)[index]
        if index.shape[0] == 1:
            return int(index[0])
        distinct = np.unique(index)
        if distinct.size == 1:
            return int(distinct[0])
        for target in distinct:
            self.part(group, (index == target).nonzero()[0], int(target))
        return -1

    # Meeting --------------------------------------------------------------------------------------------------------

    def choose(self) -> tuple[int, Group]:
        """The lowest block that lanes may enter, with those lanes; now and then the highest.

        The exception lets a lane that holds a lock get on while others spin for it.
        """
        blocks = self.program.blocks
        self.choices += 1
        for number in sorted(self.waiting, reverse=self.choices % _FAIR == 0):
            group = join(self.waiting[number], self.program.flow.live[number])
            meets = blocks[number].meets
            if not meets:
                del self.waiting[number]
                return number, group
            self.waiting[number] = [group]
            ready = self.ready(blocks[number], group)
            if ready is None or ready.any():
                return number, self.enter(number, group, ready)
        self.stuck()

    def enter(self, number: int, group: Group, ready: Array | None) -> Group:
        block = self.program.blocks[number]
        del self.waiting[number]
        if ready is not None and not ready.all():
            live = self.program.flow.live[number]
            self.waiting[number] = [group.select((~ready).nonzero()[0], live)]
            group = group.select(ready.nonzero()[0], live)
        self.chunk.tick(group.lanes, group.full, block.meets == "block")
        if self.chunk.counters is not None and block.meets == "block":
            self.chunk.counters.barriers += group.n // self.chunk.geometry.threads
        return group

    def ready(self, block: Block, group: Group) -> Array | None:
        """Which lanes may enter; None for all of them."""
        instruction, geometry = block.instructions[0], self.chunk.geometry
        if block.meets == "warp":
            return self.ready_warps(instruction, group)
        need = _barrier_count(instruction, geometry.threads)
        if group.full and need == geometry.threads:
            return None
        blocks = group.of_lanes(geometry.block_of)
        here: Array = np.bincount(blocks, minlength=geometry.blocks)[blocks]
        return here >= need

    def ready_warps(self, instruction: Instruction, group: Group) -> Array | None:
        mask, geometry = self.mask(instruction, group), self.chunk.geometry
        if group.full and geometry.whole_warps and mask.shape[0] == 1 and mask[0] == 0xFFFFFFFF:
            return None
        own = np.uint32(1) << group.special("laneid")
        outside = mask & own == 0
        if outside.any():
            position = int(group.spread(outside).argmax())
            what = f"the member mask {int(group.spread(mask)[position]):#x} does not name the lane itself"
            self.chunk.fail(instruction, what, int(group.lanes[position]))
        here = present(group)[group.of_lanes(geometry.warp_of)]
        return group.spread(mask & ~here == 0)

    def mask(self, instruction: Instruction, group: Group) -> Array:
        """The member mask: the last operand of every warp instruction."""
        operand = instruction.operands[-1]
        if isinstance(operand, Immediate):
            return np.array([int(operand.value) & 0xFFFFFFFF], np.uint32)
        assert isinstance(operand, Register)
        value = group.registers[self.program.index(operand)]
        if value is None:
            self.program.undefined(group, operand.name, instruction.line)
        found: Array = value.view(np.uint32)
        return found

    # Errors ---------------------------------------------------------------------------------------------------------

    def stuck(self) -> NoReturn:
        """Nobody can go on: explain the first barrier, or the first warp instruction."""
        places = sorted(self.waiting, key=lambda n: (self.program.blocks[n].meets != "block", n))
        number = places[0]
        block, group = self.program.blocks[number], self.waiting[number][0]
        instruction = block.instructions[0]
        lane = int(group.lanes[0])
        if block.meets == "block":
            what = f"barrier in divergent code: {self.absent(group, lane, places)}"
        else:
            what = self.missing(instruction, group)
        self.chunk.fail(instruction, what, lane)

    def absent(self, group: Group, lane: int, places: list[int]) -> str:
        g = self.chunk.geometry
        block = lane // g.threads
        here = int((group.lanes // g.threads == block).sum())
        gone = int(self.chunk.finished[block * g.threads : (block + 1) * g.threads].sum())
        text = f"{here} of {g.threads} threads of the block wait here"
        if gone:
            text += f", {gone} have finished"
        for number in places[1:]:
            other = self.waiting[number][0]
            count = int((other.lanes // g.threads == block).sum())
            if count:
                text += f", {count} wait at line {self.program.blocks[number].line}"
        return text

    def missing(self, instruction: Instruction, group: Group) -> str:
        mask = int(group.spread(self.mask(instruction, group))[0])
        geometry = self.chunk.geometry
        here = int(present(group)[geometry.warp_of[group.lanes[0]]])
        lanes = [k for k in range(32) if (mask & ~here) >> k & 1]
        return f"{instruction.opcode}: the member mask {mask:#x} names lanes that are not there: {lanes}"

    def internal(self, error: Exception, number: int) -> PtxError:
        """A failure of the emulator itself, with the PTX line that the generated code was at."""
        line = self.program.blocks[number].line
        trace = sys.exc_info()[2]
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == self.program.filename:
                line = self.program.origins[trace.tb_lineno - 1]
            trace = trace.tb_next
        what = f"the emulator failed: {type(error).__name__}: {error}"
        return PtxError(
            what, line=line, text=self.chunk.source.text(line), kernel=self.chunk.kernel
        )


def _barrier_count(instruction: Instruction, threads: int) -> int:
    """The threads that a barrier waits for: its second operand, where there is one."""
    operands = instruction.operands
    if (
        "red" not in instruction.modifiers
        and len(operands) > 1
        and isinstance(operands[1], Immediate)
    ):
        return int(operands[1].value)
    return threads
