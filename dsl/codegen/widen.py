"""Rewrites the body of a loop over elements as one over vectors of them.

In: the lines of one step of a loop whose iterations are independent but for what they add up, as `Function` emits them: one block
without branches, or blocks of which the first starts with a label. Out: lines for a step of as many elements as a vector has
lanes, and what comes before and after the loop. What LLVM's vectoriser finds out about a loop is known when it is emitted, and to
write the vectors down takes a tenth of its time.

Each value of the body is one of four things:
- fixed: the same in each iteration; it is computed before the loop;
- a count: an integer or address that grows by a constant from iteration to iteration; the first lane's is computed;
- a vector;
- local: a number that all iterations have in common, which is computed where it is, as it follows from a loop within.

The body may have loops in it which make the same trips in all iterations: all lanes go through them together. What they carry
are stack slots that the body sets before it reads them: of numbers that lanes have in common, or of vectors.

A vector may have more lanes than a register holds: it then takes several, which are worked on side by side. A stack slot that is
read, combined with a vector and written is a sum (or product, maximum, …): its lanes are combined after the loop, in an order that
depends on their number alone. A sum of truths is a count: the set bits of a mask are counted, whatever the size of the number is.

>>> lines = ["  %p = getelementptr inbounds float, ptr %a, i64 %i", "  %x = load float, ptr %p, align 4",
...          "  %y = fmul float %x, %c", "  store float %y, ptr %p, align 4"]
>>> print("\\n".join(read(lines, "%i").widened(8).body))
  %p.8 = getelementptr inbounds float, ptr %a, i64 %i.8
  %x.8 = load <8 x float>, ptr %p.8, align 4
  %y.8 = fmul <8 x float> %x.8, %i.8.c.all
  store <8 x float> %y.8, ptr %p.8, align 4
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from dsl.codegen import windows
from dsl.codegen.math import by_register
from dsl.codegen.steps import CONVERSIONS, INTRINSICS, MATH, Step, parse

__all__ = ["Body", "Widened", "read"]

# Where steps are: in the first block, in a later one, in a loop.
_FIRST, _BEHIND, _WITHIN = range(3)
_LINE = 64  # bytes of a line of the caches
_WORD = 64  # lanes whose truths are counted at a time
_BYTES = {"i1": 0, "i8": 1, "i16": 2, "i32": 4, "i64": 8, "half": 2, "float": 4, "double": 8}
_SUFFIX = {"half": "f16", "float": "f32", "double": "f64"}
_ZEROS = ("0", "0x0000000000000000", "0xH0000", "false")
# How lanes are combined, by the instruction that combines elements; those of `_SAME` may count an element twice.
_REDUCTIONS = {
    "fadd": "fadd", "fmul": "fmul", "add": "add", "mul": "mul", "and": "and", "or": "or", "xor": "xor",
    "llvm.maximum": "fmaximum", "llvm.minimum": "fminimum", "llvm.maxnum": "fmax", "llvm.minnum": "fmin",
    "llvm.smax": "smax", "llvm.smin": "smin", "llvm.umax": "umax", "llvm.umin": "umin",
}  # fmt: skip
_WITH_NANS = ("fmaximum", "fminimum")
_START = {
    "fadd": "0x8000000000000000", "fmul": "0x3FF0000000000000", "add": "0", "mul": "1", "xor": "0",
}  # fmt: skip


@dataclass(frozen=True)
class _Sum:
    """A slot that the loop combines with a vector: the steps that read it, combine and write."""

    slot: str
    read: Step
    combine: Step
    counted: Step | None = (
        None  # what makes a number of the truth that is added, if nothing else is
    )

    @property
    def of_count(self) -> tuple[Step, ...]:
        """The steps that become one number for all lanes, if truths are counted."""
        return () if self.counted is None else (self.read, self.counted, self.combine)


@dataclass
class Widened:
    """Lines before the loop, for a step of it (whose counter is the body's with the lanes behind), and after it."""

    counter: str
    before: list[str] = field(default_factory=list)
    body: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    slots: list[tuple[str, str]] = field(default_factory=list)  # of vectors: name and type
    calls: dict[str, tuple[str, list[str]]] = field(
        default_factory=dict
    )  # types of result and args


@dataclass
class Body:
    """A loop's body that can be widened. `counts` tells by how much values grow in each iteration; addresses in bytes."""

    steps: list[Step]
    counter: str
    counts: dict[str, int]
    vectors: set[str]
    sums: dict[str, _Sum]  # by slot
    slots: frozenset[str] = frozenset()  # that the body sets before it reads them
    wide: set[str] = field(default_factory=set)  # those of vectors
    local: set[str] = field(default_factory=set)

    @property
    def has_loops(self) -> bool:
        """Whether there are loops within."""
        return any(step.op == "label" for step in self.steps)

    @property
    def has_extremum(self) -> bool:
        """Whether a slot becomes the maximum or minimum of floats."""
        return any(_reduction(s.combine) in _WITH_NANS for s in self.sums.values())

    @property
    def widest(self) -> int:
        """The size of the largest elements."""
        narrow = {s.result for total in self.sums.values() for s in total.of_count}
        wide = [s for s in self.steps if self._is_wide(s) and s.result not in narrow]
        sizes = [_BYTES[s.type] for s in wide]
        sizes += [_BYTES[t] for s in wide for t, _ in s.args if t != "ptr"]
        return max([1, *sizes])

    @property
    def work(self) -> int:
        """How many instructions a step has for each register."""
        return sum(self._is_wide(step) for step in self.steps)

    @property
    def calls(self) -> bool:
        """Whether functions are called."""
        return any(MATH.match(step.op.split()[-1]) for step in self.steps)

    def _is_wide(self, step: Step) -> bool:
        if step.op != "store":
            return step.result in self.vectors
        slot = step.args[1][1]
        return slot in self.wide or slot not in (*self.sums, *self.slots)

    @property
    def smallest(self) -> int:
        """The size of the smallest elements in memory."""
        moved = (s for s in self.steps if s.op in ("load", "store") and self._is_wide(s))
        kept = (*self.sums, *self.slots)
        return min([8, *(_BYTES[s.type] for s in moved if s.args[-1][1] not in kept)])

    @property
    def fill(self) -> tuple[str, str, int] | None:
        """The address that counts, the byte and the size of elements, if all that the loop does is fill memory with bytes."""
        stores = [step for step in self.steps if step.op == "store"]
        others = any(step.op in ("load", "label") for step in self.steps)
        if self.vectors or len(stores) != 1 or others:
            return None
        (type, value), (_, address) = stores[0].args
        if value not in _ZEROS and not (type == "i8" and value.isdigit()):
            return None
        return address, "0" if value in _ZEROS else value, _BYTES[type]

    def widened(self, lanes: int, stop: str = "", start: str = "", past: str = "") -> Widened:
        """Return the body for vectors of so many lanes; with a `stop`, for those lanes alone whose count is below it.

        With a `start`, the first count of the loop, elements that several steps read are read once: see `windows`. `past` is
        what is said of stores that go past the caches, to memory that is aligned to whole lines.
        """
        return _Widening(self, lanes, stop, start, past).run()


def read(lines: Sequence[str], counter: str, slots: Iterable[str] = ()) -> Body | None:
    """Return the body of a loop, or None if it is left to LLVM; the slots are the body's own."""
    steps = [parse(line.strip()) for line in lines]
    if any(step is None for step in steps):
        return None
    known = [step for step in steps if step is not None]
    body = Body(known, counter, {counter: 1}, set(), {}, frozenset(slots))
    body.sums = _sums(known, body.slots)
    ok = _slots_are_set(body) and _classify_all(body)
    return body if ok and body.work and _sums_hold(body) else None


# -- reading ----------------------------------------------------------------------------------------------------------


def _sums(steps: Sequence[Step], own: frozenset[str]) -> dict[str, _Sum]:
    """Find slots that are read, combined and written once each, in a way that lanes can be combined."""
    made = {step.result: step for step in steps if step.result}
    uses: dict[str, int] = {}
    for step in steps:
        for _, name in step.args:
            uses[name] = uses.get(name, 0) + 1
    found = {}
    for store in steps:
        if store.op != "store" or store.args[1][1] in made or store.args[1][1] in own:
            continue
        slot, combine = store.args[1][1], made.get(store.args[0][1])
        reads = [s for s in steps if s.op == "load" and s.args[0][1] == slot]
        if combine is None or len(reads) != 1 or uses[slot] != 2:
            continue
        once = uses.get(reads[0].result) == 1 and uses[combine.result] == 1
        if once and _reduction(combine) and (combine.type, reads[0].result) in combine.args:
            found[slot] = _Sum(slot, reads[0], combine, _counted(made, uses, reads[0], combine))
    return found


def _counted(made: dict[str, Step], uses: dict[str, int], read: Step, combine: Step) -> Step | None:
    """Return the conversion of a truth to a number that is but added to an int64."""
    (added,) = (name for _, name in combine.args if name != read.result)
    step = made.get(added)
    if step is None or combine.op.split()[0] != "add" or combine.type != "i64" or uses[added] != 1:
        return None
    return step if step.op == "zext" and step.args[0][0] == "i1" else None


def _reduction(step: Step) -> str | None:
    """Return how lanes that a step has combined are combined."""
    words = step.op.split()
    for word in (words[0], words[-1]):
        if word in _REDUCTIONS:
            in_order = word in ("fadd", "fmul") and "reassoc" not in words
            return None if in_order else _REDUCTIONS[word]
    return None


def _slots_are_set(body: Body) -> bool:
    """Tell whether what is first done to each of a body's own slots is to set it, and all branches stay in the body."""
    if body.has_loops and [step.op for step in body.steps[:2]] != ["br", "label"]:
        return False
    seen: dict[str, str] = {}
    labels = {step.more for step in body.steps if step.op == "label"}
    for step in body.steps:
        if step.op in ("load", "store"):
            seen.setdefault(step.args[-1][1], step.op)
        if step.op in ("br", "phi") and not labels.issuperset(step.more.split()):
            return False
    return all(seen.get(slot, "store") == "store" for slot in body.slots)


def _classify_all(body: Body) -> bool:
    """Note what all steps' results are. Slots are taken for ones of numbers until a vector is found that is put there."""
    while True:
        body.counts, body.vectors, body.local = {body.counter: 1}, set(), set()
        for step, where in zip(body.steps, _places(body.steps), strict=True):
            if not _classify(body, step, where):
                return False
        vary = body.vectors | body.counts.keys()
        found = {
            step.args[1][1]
            for step in body.steps
            if step.op == "store" and step.args[1][1] in body.slots and step.args[0][1] in vary
        }
        if found <= body.wide:
            return True
        body.wide |= found


def _places(steps: Sequence[Step]) -> list[int]:
    """Return where each step is: in the first block, behind it, or in a loop within, which a branch back ends."""
    labels = {step.more: k for k, step in enumerate(steps) if step.op == "label"}
    first = min((k for k in labels.values() if k > 1), default=len(steps))
    places = [_FIRST] * first + [_BEHIND] * (len(steps) - first)
    for k, step in enumerate(steps):
        if step.op == "br":
            start = min(labels[label] for label in step.more.split())
            places[start : k + 1] = [_WITHIN] * max(0, k + 1 - start)
    return places


def _classify(body: Body, step: Step, where: int) -> bool:
    """Note what a step's result is; tell whether the step can be widened."""
    if step.op == "load":
        return _classify_load(body, step, where)
    if step.op == "store":
        address = step.args[1][1]
        kept = address in body.sums or address in body.slots
        return kept or _goes_on(body, step, address, where)
    names = [name for _, name in step.args]
    if step.op in ("label", "br", "phi"):
        body.local.add(step.result)
        return not any(name in body.vectors or name in body.counts for name in names)
    if step.op in by_register.STEMS or any(name in body.vectors for name in names):
        if step.op == "getelementptr" or not (body.has_loops or _is_quick(step)):
            return False
        body.vectors.add(step.result)
        return True
    if not any(name in body.counts for name in names):
        if where != _FIRST or any(name in body.local for name in names):
            body.local.add(step.result)
        return True
    grows = _growth(body, step)
    if grows is not None:
        body.counts[step.result] = grows
        return True
    if step.op == "getelementptr" or not (body.has_loops or _is_quick(step)):
        return False
    body.vectors.add(step.result)
    return True


def _classify_load(body: Body, step: Step, where: int) -> bool:
    address = step.args[0][1]
    moves = step.type != "ptr" and _goes_on(body, step, address, where)
    if address in body.sums or address in body.wide or moves:
        body.vectors.add(step.result)
        return True
    if where != _FIRST or address in body.slots or address in body.local:
        body.local.add(step.result)
    if address in body.slots:
        return True
    fixed = address not in body.counts and address not in body.vectors
    return fixed and not any(s.op == "store" and s.args[1][1] == address for s in body.steps)


def _goes_on(body: Body, step: Step, address: str, where: int) -> bool:
    """Tell whether an address goes from element to element; around loops, where it matters little, it may go on in other steps."""
    grows, size = body.counts.get(address, 0), _BYTES[step.type]
    far = body.has_loops and where != _WITHIN and size > 0
    return grows > 0 and (grows == size or (far and grows % size == 0))


def _growth(body: Body, step: Step) -> int | None:
    """Return by how much a value grows in each iteration, or None if it is no count."""
    growths = [body.counts.get(name, 0) for _, name in step.args]
    op = step.op.split()[0]
    if op == "getelementptr":
        return growths[0] + growths[1] * _BYTES[step.type]
    if step.type != "i64":
        return None
    if op == "add":
        return sum(growths)
    if op == "sub":
        return growths[0] - growths[1]
    if op == "mul":
        for growth, (_, factor) in zip(growths, reversed(step.args)):
            if growth and re.fullmatch(r"-?\d+", factor):
                return growth * int(factor)
    return None


def _is_quick(step: Step) -> bool:
    """Tell whether all CPUs have an instruction for vectors. Around loops that matters little: LLVM keeps to one lane there."""
    types = {step.type, *(type for type, _ in step.args)}
    op = step.op.split()[0]
    if op in ("shl", "lshr", "ashr"):
        return not types & {"i8", "i16"}
    if op in ("sitofp", "uitofp"):
        return "i64" not in types
    return not (op == "mul" and types & {"i8", "i64"})


def _sums_hold(body: Body) -> bool:
    """Tell whether each slot is combined with a vector."""
    return all(
        any(name in body.vectors and name != s.read.result for _, name in s.combine.args)
        for s in body.sums.values()
    )


# -- writing ----------------------------------------------------------------------------------------------------------


class _Widening:
    """Writes a body for vectors of so many lanes; names have the number of lanes behind them."""

    def __init__(self, body: Body, lanes: int, stop: str, start: str, past: str) -> None:
        self.given, self.lanes, self.stop, self.start = body, lanes, stop, start
        self.past = past
        found = windows.find(body.steps, body.vectors, lanes) if start else []
        self.windows = {name: window for window in found for name in window.behind}
        self.opened: dict[windows.Window, str] = {}  # and what the names of its vectors begin with
        self.starts: set[str] = set()
        self.made = {step.result for step in body.steps if step.result}
        self.counts = {s.result: t for t in body.sums.values() for s in t.of_count}
        self.out = Widened(self.named(body.counter))
        self.splats: dict[tuple[str, str], str] = {}
        self.here: dict[tuple[str, str], str] = {}  # in the block that is written
        self.blocks = self.serial = 0
        self.mask = f"<{lanes} x i1> {self.out.counter}.mask"

    def run(self) -> Widened:
        if self.stop:
            self.write_mask()
        for step in self.given.steps:
            self.write(step)
        for total in self.given.sums.values():
            if total.counted is None:
                self.finish(total)
        self.out.slots += self.rooms()
        return self.out

    def rooms(self) -> list[tuple[str, str]]:
        """Return the body's own slots of vectors."""
        stores = [step for step in self.given.steps if step.op == "store"]
        types = {step.args[1][1]: step.type for step in stores}
        return [(self.slot(name), self.type(types[name])) for name in sorted(self.given.wide)]

    def write_mask(self) -> None:
        """Compare the lanes' numbers with how many elements are left, which are few. (LLVM's own function for this aborts at -O0.)

        Where integers are made narrower, LLVM must not know how many: for a mask of one lane it stores the wider one.
        """
        left, numbers = f"{self.out.counter}.left", ", ".join(f"i32 {k}" for k in range(self.lanes))
        narrows = any(s.op == "trunc" and s.result in self.given.vectors for s in self.given.steps)
        few = f"{left}.few" if narrows else left
        self.out.body += [
            f"  {left}.64 = sub i64 {self.stop}, {self.out.counter}",
            f"  {few} = trunc i64 {left}.64 to i32",
            *([f'  {left} = call i32 asm "", "=r,0"(i32 {few})'] if narrows else ()),
            *self.spread("i32", left, f"{left}.all"),
            f"  {self.mask.split()[-1]} = icmp sgt {self.type('i32')} {left}.all, <{numbers}>",
        ]

    def named(self, name: str) -> str:
        return f"{name}.{self.lanes}{'m' if self.stop else ''}"

    def overloaded(self, name: str, type: str) -> str:
        """Return LLVM's name of a function of vectors."""
        return f"llvm.{name}.v{self.lanes}{_SUFFIX.get(type, type)}"

    def call_by_name(
        self, made: str, name: str, result: str, args: Sequence[str], types: Sequence[str]
    ) -> None:
        """Write a call of a function, which is declared."""
        self.out.calls[name] = result, list(types)
        self.out.body.append(f"  {made} = {_called(name, (), result, args)}")

    def own(self, name: str) -> str:
        """Return a name for what this loop makes of a value that other loops may use as well."""
        return f"{self.out.counter}.{name[1:]}"

    def type(self, type: str) -> str:
        return f"<{self.lanes} x {type}>"

    def scalar(self, name: str) -> str:
        """Return an operand as it is, or as the first lane's."""
        return self.named(name) if name in self.made or name == self.given.counter else name

    def vector(self, type: str, name: str) -> str:
        """Return an operand as a vector."""
        if name in self.given.vectors:
            return self.named(name)
        if not name.startswith("%"):
            return f"splat ({type} {name})"
        if name in self.given.counts:
            return self.lanes_of(type, name)
        return self.splat(type, name)

    def splat(self, type: str, name: str) -> str:
        """Return a fixed value in all lanes, put there before the loop, or a local one."""
        if name in self.given.local:
            return self.once_here(type, name, "all", self.spread)
        if (type, name) not in self.splats:
            self.splats[type, name] = made = f"{self.own(name)}.all"
            self.out.before += self.spread(type, self.scalar(name), made)
        return self.splats[type, name]

    def spread(self, type: str, value: str, made: str) -> list[str]:
        wide = self.type(type)
        zeros = f"<{self.lanes} x i32> zeroinitializer"
        return [
            f"  {made}.0 = insertelement {wide} poison, {type} {value}, i64 0",
            f"  {made} = shufflevector {wide} {made}.0, {wide} poison, {zeros}",
        ]

    def lanes_of(self, type: str, name: str) -> str:
        """Return the counts of all lanes."""
        growth = self.given.counts[name]
        steps = ", ".join(f"{type} {growth * lane}" for lane in range(self.lanes))

        def counted(type: str, value: str, made: str) -> list[str]:
            first = self.spread(type, value, f"{made}.first")
            return [*first, f"  {made} = add {self.type(type)} {made}.first, <{steps}>"]

        return self.once_here(type, name, "each", counted)

    def once_here(
        self, type: str, name: str, label: str, write: Callable[[str, str, str], list[str]]
    ) -> str:
        """Return what is made of a scalar where it is needed, once in each block."""
        if (type, name) not in self.here:
            block = f".{self.blocks}" if self.blocks else ""
            self.here[type, name] = made = f"{self.own(name)}.{label}{block}"
            self.out.body += write(type, self.scalar(name), made)
        return self.here[type, name]

    def write(self, step: Step) -> None:
        if step.result in self.counts:
            self.write_count(step, self.counts[step.result])
        elif step.op == "store":
            self.write_store(step)
        elif step.op in ("label", "br", "phi"):
            self.write_block(step)
        elif step.result in self.given.vectors:
            self.write_vector(step)
        else:
            args = [self.scalar(name) for _, name in step.args]
            moves = step.result in self.given.counts or step.result in self.given.local
            where = self.out.body if moves else self.out.before
            if MATH.fullmatch(step.op):
                self.out.calls[step.op] = step.type, [type for type, _ in step.args]
            where.append(f"  {self.named(step.result)} = {_text(step, step.type, args)}")

    def write_block(self, step: Step) -> None:
        """Write a label, a branch or a number that depends on where it was come from; labels have the number of lanes behind them."""
        labels = [self.named(label) for label in step.more.split()]
        args = [self.scalar(name) for _, name in step.args]
        if step.op == "label":
            self.blocks, self.here = self.blocks + 1, {}
            self.out.body.append(f"{labels[0]}:")
        elif step.op == "phi":
            pairs = ", ".join(f"[{arg}, %{label}]" for arg, label in zip(args, labels, strict=True))
            self.out.body.append(f"  {self.named(step.result)} = phi i64 {pairs}")
        else:
            where = ", ".join([*(f"i1 {arg}" for arg in args), *(f"label %{l}" for l in labels)])
            self.out.body.append(f"  br {where}")

    def write_vector(self, step: Step) -> None:
        made, wide = self.named(step.result), self.type(step.type)
        if step.op == "load" and self.is_far(step, step.args[0][1]):
            self.load_apart(step)
            return
        if self.stop and step.op == "load" and self.is_memory(step.args[0][1]):
            self.masked_load(step)
            return
        if step.result in self.windows:
            self.window_load(step, self.windows[step.result])
            return
        if step.op in by_register.STEMS:
            args = [self.vector(*arg) for arg in step.args]
            lines, called = by_register.write(step.op, step.type, made, self.lanes, args)
            self.out.body += lines
            self.out.calls |= called
            return
        total = next((t for t in self.given.sums.values() if t.combine is step), None)
        whole = f"{made}.whole" if self.stop and total is not None else made
        self.out.body.append(f"  {whole} = {self.instruction(step)}")
        if total is not None and whole != made:  # lanes behind the end keep what they had
            kept = self.named(total.read.result)
            self.out.body.append(f"  {made} = select {self.mask}, {wide} {whole}, {wide} {kept}")

    def write_count(self, step: Step, total: _Sum) -> None:
        """Add how many lanes are true to the slot itself."""
        assert total.counted is not None
        if step is not total.combine:
            return
        made, name = self.named(step.result), total.counted.args[0][1]
        truths = f"{self.type('i1')} {self.vector('i1', name)}"
        if self.stop:
            self.out.body.append(f"  {made}.kept = and {truths}, {self.mask.split()[-1]}")
            truths = f"{self.type('i1')} {made}.kept"
        self.out.body.append(f"  {made}.0 = load i64, ptr {total.slot}")
        self.out.calls["llvm.ctpop.i64"] = "i64", ["i64"]
        parts = range(0, self.lanes, _WORD)
        for k, first in enumerate(parts):
            self.out.body += self.count_word(truths, first, f"{made}.word{k}")
            number = f"{made}.{k + 1}" if first + _WORD < self.lanes else made
            self.out.body.append(f"  {number} = add i64 {made}.{k}, {made}.word{k}")
        self.out.body.append(f"  store i64 {made}, ptr {total.slot}")

    def count_word(self, truths: str, first: int, made: str) -> list[str]:
        """Write the count of up to 64 lanes."""
        count, lines = min(self.lanes, _WORD), []
        if count < self.lanes:
            places = ", ".join(f"i32 {first + k}" for k in range(count))
            vector = f"{truths}, {self.type('i1')} poison, <{count} x i32> <{places}>"
            lines.append(f"  {made}.part = shufflevector {vector}")
            truths = f"<{count} x i1> {made}.part"
        lines.append(f"  {made}.bits = bitcast {truths} to i{count}")
        if count < _WORD:
            lines.append(f"  {made}.wide = zext i{count} {made}.bits to i64")
        bits = f"{made}.wide" if count < _WORD else f"{made}.bits"
        return [*lines, f"  {made} = {_called('llvm.ctpop.i64', (), 'i64', [f'i64 {bits}'])}"]

    def window_load(self, step: Step, window: windows.Window) -> None:
        """Take a vector of a window from the foremost one and the one that was it before."""
        wide, lanes, behind = self.type(step.type), self.lanes, window.behind[step.result]
        if window not in self.opened:
            self.open_window(step, window)
        name = self.opened[window]
        places = ", ".join(f"i32 {lanes - behind + k}" for k in range(lanes))
        pair = f"{wide} {name}.last, {wide} {name}.next"
        self.out.body.append(
            f"  {self.named(step.result)} = shufflevector {pair}, <{lanes} x i32> <{places}>"
        )

    def open_window(self, step: Step, window: windows.Window) -> None:
        """Read the foremost vector; before the loop, those lanes of the one before it that the first step needs."""
        wide, type, size = self.type(step.type), step.type, _BYTES[step.type]
        self.opened[window] = name = f"{self.own(step.result)}.window"
        address, ahead = step.args[0][1], window.behind[step.result]
        first = self.at_start(address)
        self.out.slots.append((name, wide))
        kept = ", ".join(f"i1 {int(k >= self.lanes - window.span)}" for k in range(self.lanes))
        load = f"{self.overloaded('masked.load', type)}.p0"
        self.out.calls[load] = wide, ["ptr", "i32", self.type("i1"), wide]
        args = [
            f"ptr {name}.from",
            f"i32 {size}",
            f"{self.type('i1')} <{kept}>",
            f"{wide} zeroinitializer",
        ]
        self.out.before += [
            f"  {name}.from = getelementptr {type}, ptr {first}, i64 {ahead - self.lanes}",
            f"  {name}.first = {_called(load, (), wide, args)}",
            f"  store {wide} {name}.first, ptr {name}",
        ]
        self.out.body += [
            f"  {name}.place = getelementptr inbounds {type}, ptr {self.scalar(address)}, i64 {ahead}",
            f"  {name}.next = load {wide}, ptr {name}.place{step.more}",
            f"  {name}.last = load {wide}, ptr {name}",
            f"  store {wide} {name}.next, ptr {name}",
        ]

    def at_start(self, name: str) -> str:
        """Return what a count is in the first step, computed before the loop."""
        if name == self.given.counter:
            return self.start
        if name not in self.given.counts:
            return self.scalar(name)
        made = f"{self.own(name)}.start"
        if made not in self.starts:
            self.starts.add(made)
            step = next(s for s in self.given.steps if s.result == name)
            args = [self.at_start(arg) for _, arg in step.args]
            self.out.before.append(f"  {made} = {_text(step, step.type, args)}")
        return made

    def masked_load(self, step: Step) -> None:
        wide, address = self.type(step.type), self.scalar(step.args[0][1])
        args = [f"ptr {address}", f"i32 {_alignment(step)}", self.mask, f"{wide} zeroinitializer"]
        types = ["ptr", "i32", self.type("i1"), wide]
        name = f"{self.overloaded('masked.load', step.type)}.p0"
        self.call_by_name(self.named(step.result), name, wide, args, types)

    def masked_store(self, step: Step) -> None:
        (type, value), (_, address) = step.args
        wide, name = self.type(type), f"{self.overloaded('masked.store', type)}.p0"
        self.out.calls[name] = "void", [wide, "ptr", "i32", self.type("i1")]
        self.out.body.append(
            f"  call void @{name}({wide} {self.vector(type, value)}, ptr {self.scalar(address)}, "
            f"i32 {_alignment(step)}, {self.mask})"
        )

    def is_far(self, step: Step, address: str) -> bool:
        """Tell whether the elements of lanes do not lie one behind the other."""
        return self.is_memory(address) and self.given.counts.get(address) != _BYTES[step.type]

    def load_apart(self, step: Step) -> None:
        made, wide = self.named(step.result), self.type(step.type)
        name = f"{self.overloaded('masked.gather', step.type)}.v{self.lanes}p0"
        args, types = self.apart(step, step.args[0][1])
        args, types = [*args, f"{wide} zeroinitializer"], [*types, wide]
        self.call_by_name(made, name, wide, args, types)

    def store_apart(self, step: Step) -> None:
        (type, value), (_, address) = step.args
        wide = self.type(type)
        name = f"{self.overloaded('masked.scatter', type)}.v{self.lanes}p0"
        args, types = self.apart(step, address)
        self.out.calls[name] = "void", [wide, *types]
        listing = ", ".join([f"{wide} {self.vector(type, value)}", *args])
        self.out.body.append(f"  call void @{name}({listing})")

    def apart(self, step: Step, address: str) -> tuple[list[str], list[str]]:
        """Return the addresses of lanes that go on in steps, their alignment and the mask, and the types of these."""
        steps = ", ".join(f"i64 {self.given.counts[address] * k}" for k in range(self.lanes))
        self.serial += 1
        made, first = f"{self.out.counter}.places.{self.serial}", self.scalar(address)
        self.out.body.append(
            f"  {made} = getelementptr i8, ptr {first}, <{self.lanes} x i64> <{steps}>"
        )
        mask = self.mask if self.stop else f"{self.type('i1')} splat (i1 true)"
        args = [f"{self.type('ptr')} {made}", f"i32 {_alignment(step)}", mask]
        return args, [self.type("ptr"), "i32", self.type("i1")]

    def write_store(self, step: Step) -> None:
        (type, value), (_, address) = step.args
        total = self.given.sums.get(address)
        if total is not None and total.counted is not None:
            return  # with the count
        if address in self.given.slots - self.given.wide:
            self.out.body.append(f"  store {type} {self.scalar(value)}, ptr {address}")
            return
        memory = self.is_memory(address)
        if self.is_far(step, address):
            self.store_apart(step)
            return
        if self.stop and memory:
            self.masked_store(step)
            return
        place, more = (self.scalar(address), step.more) if memory else (self.slot(address), "")
        if self.past and memory:
            more = f", align {min(_LINE, self.lanes * _BYTES[type])}{self.past}"
        self.out.body.append(
            f"  store {self.type(type)} {self.vector(type, value)}, ptr {place}{more}"
        )

    def instruction(self, step: Step) -> str:
        """Return the right side of a step that makes a vector."""
        if step.op == "load":
            return self.load(step)
        if step.op == "select" and self.is_fixed(step.args[0][1]):
            args = [self.scalar(step.args[0][1]), *(self.vector(*arg) for arg in step.args[1:])]
            return _select("i1", self.type(step.type), args)
        args = [self.vector(*arg) for arg in step.args]
        if step.op == "select":
            return _select(self.type("i1"), self.type(step.type), args)
        *flags, name = step.op.split()
        if MATH.fullmatch(name) or name in INTRINSICS:
            return self.call(name, flags, step, args)
        return _text(step, self.type(step.type), args, self.type(step.args[0][0]))

    def is_memory(self, address: str) -> bool:
        """Tell whether an address is that of an array, not of a slot."""
        return address not in self.given.sums and address not in self.given.slots

    def is_fixed(self, name: str) -> bool:
        return name not in self.given.vectors and name not in self.given.counts

    def load(self, step: Step) -> str:
        address = step.args[0][1]
        if self.is_memory(address):
            return f"load {self.type(step.type)}, ptr {self.scalar(address)}{step.more}"
        if address in self.given.wide:
            return f"load {self.type(step.type)}, ptr {self.slot(address)}"
        slot, wide, start = self.slot(address), self.type(step.type), self.start_of(address)
        self.out.slots.append((slot, wide))
        self.out.before.append(f"  store {wide} {start}, ptr {slot}")
        return f"load {wide}, ptr {slot}"

    def call(self, name: str, flags: Sequence[str], step: Step, args: Sequence[str]) -> str:
        if found := MATH.fullmatch(name):
            callee = f"dsl_math_{found[1]}_x{self.lanes}_{found[2]}"
        else:
            callee = self.overloaded(name.removeprefix("llvm."), step.type)
        wide, types = self.type(step.type), [self.type(type) for type, _ in step.args]
        self.out.calls[callee] = wide, types
        return _called(
            callee, flags, wide, [f"{type} {arg}" for type, arg in zip(types, args, strict=True)]
        )

    # -- sums ---------------------------------------------------------------------------------------------------------

    def slot(self, name: str) -> str:
        return f"{self.own(name)}.sum"

    def start_of(self, slot: str) -> str:
        """Return what the lanes start with: nothing, or, if that may count twice, what the slot has."""
        total = self.given.sums[slot]
        type, how = total.read.type, _reduction(total.combine)
        self.out.before.append(f"  {self.slot(slot)}.given = load {type}, ptr {slot}")
        if how in _START:
            return f"splat ({type} {_START[how]})"
        made = f"{self.slot(slot)}.all"
        self.out.before += self.spread(type, f"{self.slot(slot)}.given", made)
        return made

    def finish(self, total: _Sum) -> None:
        """Combine the lanes with what the slot had, after the loop."""
        how, type = _reduction(total.combine), total.read.type
        name, wide = self.slot(total.slot), self.type(type)
        callee = self.overloaded(f"vector.reduce.{how}", type)
        *flags, _ = total.combine.op.split() if "llvm" in total.combine.op else (total.combine.op,)
        marks = flags or [w for w in total.combine.op.split()[1:] if how in ("fadd", "fmul")]
        first = [f"{type} {_START[how]}"] if how in ("fadd", "fmul") else []
        lanes = [*first, f"{wide} {name}.lanes"]
        self.out.after.append(f"  {name}.lanes = load {wide}, ptr {name}")
        self.out.after.append(f"  {name}.one = {_called(callee, marks, type, lanes)}")
        self.out.calls[callee] = type, [*[type] * len(first), wide]
        result = f"{name}.one"
        if how in _START:
            args = [f"{name}.given", result]
            self.out.after.append(f"  {name}.total = {_text(total.combine, type, args)}")
            result = f"{name}.total"
        self.out.after.append(f"  store {type} {result}, ptr {total.slot}")


def _alignment(step: Step) -> int:
    return int(step.more.rpartition(" ")[2]) if step.more else _BYTES[step.type]


def _called(callee: str, flags: Sequence[str], type: str, args: Sequence[str]) -> str:
    return f"call {''.join(f'{flag} ' for flag in flags)}{type} @{callee}({', '.join(args)})"


def _select(condition: str, type: str, args: Sequence[str]) -> str:
    return f"select {condition} {args[0]}, {type} {args[1]}, {type} {args[2]}"


def _text(step: Step, type: str, args: Sequence[str], operands: str = "") -> str:
    """Return the right side of an instruction, for operands of a type; `type` is the result's."""
    op = step.op
    operands = operands or step.args[0][0]
    if op == "load":
        return f"load {type}, ptr {args[0]}{step.more}"
    if op == "getelementptr":
        return f"getelementptr inbounds {type}, ptr {args[0]}, i64 {args[1]}"
    if op == "select":
        return _select("i1", type, args)
    if op in CONVERSIONS:
        return f"{op} {operands} {args[0]} to {type}"
    *flags, name = op.split()
    if name in INTRINSICS or MATH.fullmatch(name):
        own = name if MATH.fullmatch(name) else f"{name}.{_SUFFIX.get(step.type, step.type)}"
        return _called(
            own, flags, type, [f"{kind} {arg}" for (kind, _), arg in zip(step.args, args)]
        )
    return f"{op} {operands} {', '.join(args)}"
