"""What the emulator raises: one exception, which always names the PTX line it is about."""

from __future__ import annotations

__all__ = ["PtxError"]

Index = tuple[int, int, int]


class PtxError(Exception):
    """PTX that cannot be read, or that did something a GPU would not forgive.

    `line` and `text` are the PTX line, `kernel` the entry that ran (empty while parsing), `block` and `thread` the
    first thread concerned, where there is one. The message holds all of them.
    """

    def __init__(
        self,
        what: str,
        *,
        line: int = 0,
        text: str = "",
        kernel: str = "",
        block: Index | None = None,
        thread: Index | None = None,
    ) -> None:
        self.what, self.line, self.text, self.kernel = what, line, text.strip(), kernel
        self.block, self.thread = block, thread
        super().__init__(str(self))

    def __str__(self) -> str:
        parts = [self.what]
        if self.line:
            parts.append(f"  PTX line {self.line}: {self.text}")
        where = [f"kernel {self.kernel}"] if self.kernel else []
        if self.thread is not None:
            where.append(f"block {self.block}, thread {self.thread}")
        if where:
            parts.append("  in " + ", ".join(where))
        return "\n".join(parts)
