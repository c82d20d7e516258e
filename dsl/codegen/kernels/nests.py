"""Loop nests over the axes of a kernel: what is computed before which loop, what is spread over threads, what is checked.

Where an index may be wrong, a loop remembers that and goes on with another one; afterwards the first wrong index is looked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from dsl.codegen.accesses import walk
from dsl.codegen.arrays import Scalar
from dsl.codegen.evaluate import Evaluator
from dsl.codegen.expressions import Expression
from dsl.codegen.kernels.scattered import Scattered
from dsl.codegen.llvm import Function, Operand, Value, Variable
from dsl.codegen.plan import is_checked

__all__ = ["Nests"]

_NANOSECONDS = 20_000.0  # work that is worth a thread


class Nests(Scattered):
    """Loops around loops."""

    def evaluator(self, fn: Function) -> Evaluator:
        """An evaluator that remembers whether some index was wrong and goes on with another one."""
        metadata = f", !llvm.access.group {self.group}" if self.group else ""
        if self.flag is None:
            return Evaluator(fn, self.host, {}, [{}], _no_checks, metadata)

        def remember(bad: Value, e: Expression, number: Value) -> None:
            variable = self.bad_variable(fn)
            variable.set(fn.either(variable.get(), bad))

        return Evaluator(fn, self.host, {}, [{}], remember, metadata)

    def nest(
        self, evaluator: Evaluator, groups: Sequence[Sequence[int]], body: Callable[[], None], *,
        vector: bool = True, hoist: Sequence[Expression] = (), first: tuple[Operand, Operand] | None = None,
    ) -> None:  # fmt: skip
        """Open a loop for each group of merged axes; the innermost is told to LLVM as free of dependences."""
        fn = evaluator.fn
        if not groups:
            body()
            return
        last = len(groups) == 1
        group = self.group or (self.new_group() if last and vector else "")
        self.hoist(evaluator, hoist)
        low, high = first or (0, self.extent(fn, groups[0]))
        extent = high if first is None else -1
        if last and vector:
            inner = self.kernel.variables[groups[0][-1]]
            with self.accessing(evaluator, group):
                plain = self.independent(group, extent)
                loads = self.pointed_to(groups[0], fn.sub(high, low))
                for ends in self.strips(evaluator, groups[0], (low, high), loads):
                    for at in self.vector_loops(evaluator, inner, ends, group, plain):
                        self.place(evaluator, groups[0], at)
                        body()
        else:
            told = self.independent(group, extent)
            loop = fn.loop(low, high, metadata=told, as_written=True)
            with loop as at, evaluator.scope(), self.accessing(evaluator, group):
                self.place(evaluator, groups[0], at)
                self.nest(evaluator, groups[1:], body, vector=vector, hoist=hoist)
        for k in groups[0]:
            del evaluator.points[self.kernel.variables[k]]

    def unflatten(self, evaluator: Evaluator, groups: Sequence[Sequence[int]], at: Operand) -> None:
        """Set the points of flattened loops from their common counter."""
        fn = evaluator.fn
        for k, group in enumerate(reversed(groups)):
            if k == len(groups) - 1:
                self.place(evaluator, group, at)
                return
            extent = self.extent(fn, group)
            self.place(evaluator, group, fn.binary("urem", at, extent))
            at = fn.binary("udiv", at, extent)

    def hoist(self, evaluator: Evaluator, expressions: Iterable[Expression]) -> None:
        """Compute here what does not depend on the loops still to be opened."""
        open_now = set(evaluator.points)
        pending, seen = list(expressions), set()
        while pending:
            e = pending.pop()
            if e in seen or e.kind in ("const", "register"):
                continue
            seen.add(e)
            if e.vars <= open_now:
                if e.kind != "load" or not self.is_own(e):
                    evaluator.value(e)
                continue
            pending.extend(e.args)
            for affine in e.index:
                pending.extend(item for item, _ in affine.extra)

    def parallel(
        self, count: Operand, each: float, body: Callable[[Function, Operand, Operand], None],
        inner: Sequence[Sequence[int]] = (),
    ) -> None:  # fmt: skip
        """Run `body(fn, lo, hi)` over [0, count): in this function if that is little work, else over threads.

        One item takes `each` nanoseconds for each point of the `inner` groups.
        Long programs have a function for each kernel: equal ones are the same, and LLVM's time grows with a function's length.
        """
        fn, nanoseconds = self.host.fn, each * self.elements_of(inner)
        little = isinstance(count, int) and count * nanoseconds < 2 * _NANOSECONDS
        if (little and not (self.host.apart and count != 1)) or nanoseconds <= 0:
            body(fn, 0, count)
            self.finish_checks(fn)
            return
        self.module.is_long = self.module.is_long or not little
        name = self.module.fresh("kernel")
        made = self.module.function(
            name, "void", [("ptr", "env"), ("i64", "lo"), ("i64", "hi")], internal=True, parent=fn,
        )  # fmt: skip
        made.lanes = ()
        body(made, made.params[1], made.params[2])
        self.finish_checks(made)
        made.ret()
        env = fn.environment(made)
        if little:
            fn.call("void", name, env, fn.as_value(0, "i64"), fn.as_value(count, "i64"))
            return
        grain = fn.as_value(self.grain(each, inner), "i64")
        fn.call(
            "void", "dsl_parallel", Value(f"@{name}", "ptr"), env, fn.as_value(count, "i64"), grain
        )

    def grain(self, each: float, inner: Sequence[Sequence[int]]) -> Operand:
        """Return how many items are worth a thread.

        Symbolic sizes are asked for when the program runs: to wake threads for small arrays takes longer than these, and
        few long rows are worth threads too.
        """
        fn, variables = self.host.fn, self.kernel.variables
        axes = [k for group in inner for k in group]
        symbolic = [k for k in axes if not isinstance(variables[k].extent, int)]
        known = each * self.elements_of([[k for k in axes if k not in symbolic]])
        most = max(1, math.ceil(_NANOSECONDS / max(known, 0.01)))
        if not symbolic or most == 1:
            return most
        points = fn.maximum(self.extent(fn, symbolic), 1)
        return fn.maximum(fn.binary("sdiv", most, points), 1)

    # -- indices that are wrong --------------------------------------------------------------------------------------

    def bad_variable(self, fn: Function) -> Variable:
        """The variable of a function that is true once an index was wrong."""
        if fn not in self.bad:
            self.bad[fn] = fn.variable("i1")
            fn.at_entry(f"store i1 false, ptr {self.bad[fn].address.text}")
        return self.bad[fn]

    def finish_checks(self, fn: Function) -> None:
        """Tell the program, after this thread's share, that an index was wrong."""
        if self.flag is None:
            return
        with fn.if_(self.bad_variable(fn).get(), unlikely=True):
            fn.store(Value("1", "i64"), fn.use(self.flag))

    def find_error(self) -> None:
        """Go through each index array in order until the first wrong index, and fail there.

        Arrays are looked at in the order in which NumPy would: operands from the left, then axis by axis.
        """
        fn = self.host.fn

        def stop(bad: Value, e: Expression, number: Value) -> None:
            self.host.fail_expression(fn, bad, e, number)

        evaluator = Evaluator(fn, self.host, {}, [{}], stop)
        evaluator.fetch = lambda e: self._refetch(evaluator, e)
        checked = [
            e
            for r in self.kernel.roots
            for e in reversed(list(walk(r.expression)))
            if is_checked(e)
        ]
        order = {id(e.node): k for k, e in reversed(list(enumerate(checked)))}
        groups = [[k] for k in range(len(self.kernel.variables))]
        for e in sorted(checked, key=lambda e: (order[id(e.node)], e.output)):
            self.nest(evaluator, groups, partial(evaluator.compute, e), vector=False)

    def _refetch(self, evaluator: Evaluator, e: Expression) -> Scalar | None:
        root = self.root_of(e)
        if root is None or e.value in self.stores:
            return None
        return evaluator.value(root.expression) if not root.reduce else None


def _no_checks(bad: Value, e: Expression, number: Value) -> None:
    raise AssertionError("an unplanned check")
