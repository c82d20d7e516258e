"""`dsl.profile`: a `with` block whose calls, steps, kernels and waits are measured."""

from __future__ import annotations

import os
from pathlib import Path

from dsl import events
from dsl.errors import ConfigError, DslError
from dsl.profiler import chrome
from dsl.profiler.picture import picture
from dsl.profiler.table import Cost, costs, table
from dsl.profiler.timeline import Event, make_events

__all__ = ["Profile", "profile"]

Target = str | os.PathLike[str]


class Profile:
    """What ran in a `with` block, in all threads of the process: made by `dsl.profile`.

    `print(p)` shows the costliest ops, a notebook a picture besides; `p.events` has everything. Profiles may overlap: each
    has all that ran during its own time.
    """

    def __init__(self, path: Target | None = None) -> None:
        self.path = None if path is None else Path(path)
        self._mark: int | None = None
        self._start = self._end = 0
        self._records: list[events.Record] = []
        self._made: list[Event] | None = None
        self.dropped = 0

    # -- measuring ---------------------------------------------------------------------------------------------------

    def start(self) -> Profile:
        """Begin, which `with` does."""
        if self._mark is not None:
            raise DslError("this profile is on already", remedy="make another: `dsl.profile()`")
        if self.path is not None and not self.path.absolute().parent.is_dir():
            raise ConfigError(f"there is no directory {str(self.path.parent)!r} for the profile")
        self._mark, self._start = events.begin(), events.now()
        self._records, self._made, self.dropped = [], None, 0
        return self

    def stop(self) -> None:
        """End, and write the file if one was named."""
        if self._mark is None:
            return
        self._end, self.dropped = events.now(), events.dropped()
        self._records, self._made = events.end(self._mark), None
        self._mark = None
        if self.path is not None:
            self.save(self.path)

    def __enter__(self) -> Profile:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.stop()

    # -- looking -----------------------------------------------------------------------------------------------------

    @property
    def is_on(self) -> bool:
        """Whether it measures now."""
        return self._mark is not None

    @property
    def began(self) -> int:
        """When it began, by the log's clock: the 0 of its events."""
        return self._start

    @property
    def seconds(self) -> float:
        """How long it has been on."""
        end = events.now() if self.is_on else self._end
        return 1e-9 * (end - self._start)

    @property
    def events(self) -> list[Event]:
        """All that took time, in the order of its start; while the profile is on, what is over by now."""
        if self._mark is not None:
            return make_events((events.LOG or [])[self._mark :], self._start)
        if self._made is None:
            self._made = make_events(self._records, self._start)
        return self._made

    def costs(self) -> list[Cost]:
        """Return what each op cost in all, costliest first."""
        return costs(self.events)

    def table(self, n: int = 20) -> str:
        """Return the `n` costliest ops, and a summary of each function, as text."""
        return table(self.events, n, self.seconds, self.dropped)

    def svg(self, width: int = 960) -> str:
        """Return a picture of the timeline, which needs nothing but a browser."""
        return picture(self.events, self.seconds, width)

    def save(self, path: Target) -> None:
        """Write a picture if the name ends in `.svg`, else a Chrome trace; that is compressed if it ends in `.gz`."""
        if Path(path).suffix == ".svg":
            Path(path).write_text(self.svg(), encoding="utf-8")
        else:
            chrome.write(self.events, path)

    def __str__(self) -> str:
        return self.table()

    def __repr__(self) -> str:
        state = "on" if self.is_on else f"{len(self.events)} events"
        return f"<dsl.profile: {state}>"

    def _repr_html_(self) -> str:
        from html import escape

        return f"<div>{self.svg()}<pre>{escape(self.table())}</pre></div>"


def profile(path: Target | None = None) -> Profile:
    """Measure what runs in a `with` block: calls of compiled functions, steps of sessions, compiling, kernels, waits.

    With a path, the timeline is written there when the block ends, in whatever way: a Chrome trace, or a picture if the name
    ends in `.svg`. While a profile is on, programs run that have clocks around their kernels; they are compiled
    when first called. Results are the same bits.

    >>> from dsl.compile import jit
    >>> double = jit(lambda x: x + x)
    >>> with profile() as p:
    ...     double(1.0)
    2.0
    >>> [event.name for event in p.events if event.kind == "call"]
    ['<lambda>']
    """
    return Profile(path)
