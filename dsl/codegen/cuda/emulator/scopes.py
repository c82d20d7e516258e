"""The names of a function body: registers, variables and labels, scope within scope.

A brace pair in PTX (around a call, or inline assembly) opens a scope of its own. Labels may be used before they stand.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from dsl.codegen.cuda.emulator.errors import PtxError
from dsl.codegen.cuda.emulator.syntax import Label, Register, Variable

__all__ = ["Scope"]


@dataclass(eq=False, slots=True)
class Scope:
    """One brace pair. `families` are declarations such as `%r<100>`, made into registers when first named."""

    parent: Scope | None
    names: dict[str, Register | Variable] = field(default_factory=dict)
    families: list[tuple[str, int, str, list[Register]]] = field(default_factory=list)
    labels: dict[str, Label] = field(default_factory=dict)
    uses: dict[str, tuple[Label, int]] = field(default_factory=dict)

    def find(self, name: str) -> Register | Variable | None:
        """The register or variable of this name, here or further out."""
        scope: Scope | None = self
        while scope is not None:
            found = scope.names.get(name) or scope._member(name)
            if found is not None:
                return found
            scope = scope.parent
        return None

    def _member(self, name: str) -> Register | None:
        for prefix, count, ptx_type, registers in self.families:
            tail = name[len(prefix) :]
            if name.startswith(prefix) and tail.isdigit() and int(tail) < count:
                register = Register(name, ptx_type)
                self.names[name] = register
                registers.append(register)
                return register
        return None

    def place(self, name: str) -> Label:
        """The label that stands here."""
        label = self.uses.pop(name)[0] if name in self.uses else Label(name)
        label.placed = True
        self.labels[name] = label
        return label

    def label(self, name: str, line: int) -> Label:
        """The label a branch names; it may still have to come."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.labels:
                return scope.labels[name]
            scope = scope.parent
        return self.uses.setdefault(name, (Label(name), line))[0]

    def finish(self, error: Callable[[str, int], PtxError]) -> None:
        """Close the scope: labels still open are looked for further out."""
        for name, (label, line) in self.uses.items():
            if self.parent is None:
                raise error(f"unknown label {name}", line)
            self.parent._adopt(name, label, line)

    def _adopt(self, name: str, label: Label, line: int) -> None:
        """Take over a label that an inner scope used before it stood: both uses become one object by `alias`."""
        if name in self.labels:
            label.targets, label.placed = [self.labels[name]], False
        elif name in self.uses:
            label.targets = [self.uses[name][0]]
        else:
            self.uses[name] = (label, line)
