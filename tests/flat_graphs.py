"""Flat graphs as text, spelled with Switch, Merge, Enter, Exit and NextIteration, and a log of what ran in them.

Tests parse them as they stand, or with some line replaced.
"""

from __future__ import annotations

from dsl.ir.graph import Node
from dsl.ir.token_machine import Tag

COUNT = """graph @count(%n: i64[]) -> (i64[]) {
  %zero = const() {value=0} : i64[]
  %one = const() {value=1} : i64[]
  %i = enter(%zero) {frame="w"} : i64[]
  %m = enter(%n) {frame="w", invariant} : i64[]
  %s = enter(%one) {frame="w", invariant} : i64[]
  %x = loop_merge(%i, %next) : i64[]
  %p = less(%x, %m) : bool[]
  %c = loop_cond(%p) : bool[]
  %out, %in = switch(%x, %c) : i64[], i64[]
  %y = add(%in, %s) : i64[]
  %next = next_iteration(%y) : i64[]
  %r = exit(%out) : i64[]
  return %r
}"""


SELECT = """graph @g(%p: bool[], %x: i64[]) -> (i64[]) {
  %no, %yes = switch(%x, %p) : i64[], i64[]
  %y = add(%yes, %yes) : i64[]
  %r = merge(%no, %y) : i64[]
  return %r
}"""


LATE = """graph @late(%n: i64[]) -> (i64[], i64[]) {
  %zero = const() {value=0} : i64[]
  %one = const() {value=1} : i64[]
  %i = enter(%zero) {frame="slow"} : i64[]
  %m = enter(%n) {frame="slow", invariant} : i64[]
  %s = enter(%one) {frame="slow", invariant} : i64[]
  %x = loop_merge(%i, %next) : i64[]
  %p = less(%x, %m) : bool[]
  %c = loop_cond(%p) : bool[]
  %out, %in = switch(%x, %c) : i64[], i64[]
  %y = add(%in, %s) : i64[]
  %next = next_iteration(%y) : i64[]
  %w = exit(%out) : i64[]
  %i2 = enter(%zero) {frame="fast"} : i64[]
  %t2 = enter(%zero) {frame="fast"} : i64[]
  %m2 = enter(%n) {frame="fast", invariant} : i64[]
  %s2 = enter(%one) {frame="fast", invariant} : i64[]
  %w2 = enter(%w) {frame="fast", invariant} : i64[]
  %x2 = loop_merge(%i2, %next2) : i64[]
  %u2 = loop_merge(%t2, %nextu) : i64[]
  %p2 = less(%x2, %m2) : bool[]
  %c2 = loop_cond(%p2) : bool[]
  %out2, %in2 = switch(%x2, %c2) : i64[], i64[]
  %uout, %uin = switch(%u2, %c2) : i64[], i64[]
  %y2 = add(%in2, %s2) : i64[]
  %next2 = next_iteration(%y2) : i64[]
  %v2 = add(%uin, %w2) : i64[]
  %nextu = next_iteration(%v2) : i64[]
  %r = exit(%out2) : i64[]
  %q = exit(%uout) : i64[]
  return %r, %q
}"""


PAIR = """graph @pair(%n: i64[], %a: i64[], %b: i64[]) -> (i64[], i64[]) {
  %zero = const() {value=0} : i64[]
  %one = const() {value=1} : i64[]
  %ei = enter(%zero) {frame="w"} : i64[]
  %ea = enter(%a) {frame="w"} : i64[]
  %eb = enter(%b) {frame="w"} : i64[]
  %m = enter(%n) {frame="w", invariant} : i64[]
  %s = enter(%one) {frame="w", invariant} : i64[]
  %i = loop_merge(%ei, %ni) : i64[]
  %x = loop_merge(%ea, %nx) : i64[]
  %y = loop_merge(%eb, %ny) : i64[]
  %p = less(%i, %m) : bool[]
  %c = loop_cond(%p) : bool[]
  %io, %ii = switch(%i, %c) : i64[], i64[]
  %xo, %xi = switch(%x, %c) : i64[], i64[]
  %yo, %yi = switch(%y, %c) : i64[], i64[]
  %i1 = add(%ii, %s) : i64[]
  %ni = next_iteration(%i1) : i64[]
  BODY
  %rx = exit(%xo) : i64[]
  %ry = exit(%yo) : i64[]
  return RESULTS
}"""


def pair(body: str, results: str = "%rx, %ry") -> str:
    """The text of a loop of %n trips over %x and %y."""
    count = results.count("%")
    text = PAIR.replace("BODY", body).replace("RESULTS", results)
    return text.replace("-> (i64[], i64[])", f"-> ({', '.join(['i64[]'] * count)})", 1)


# Ends with an error at %x = %y.
STOPPING = pair(
    """%fine = not_equal(%xi, %yi) : bool[]
      !0 = assert(%fine, %xi) {error="ValueError", message="at {}"}
      %x1 = add(%xi, %s) : i64[]
      %nx = next_iteration(%x1) after !0 : i64[]
      %ny = next_iteration(%yi) : i64[]"""
)

PRINTING = """graph @printing(%x: i64[]) -> (i64[]) {
  !0 = print(%x) {template="a", end=""}
  !1 = print(%x) {template="b", end=""} after !0
  %y = add(%x, %x) after !1 : i64[]
  !2 = print(%y) {template="{}", end=""} after !1
  return %y after !2
}"""

NESTED = """graph @nested(%n: i64[]) -> (i64[]) {
  %zero = const() {value=0} : i64[]
  %one = const() {value=1} : i64[]
  %two = const() {value=2} : i64[]
  %ei = enter(%zero) {frame="outer"} : i64[]
  %et = enter(%zero) {frame="outer"} : i64[]
  %m = enter(%n) {frame="outer", invariant} : i64[]
  %s = enter(%one) {frame="outer", invariant} : i64[]
  %d = enter(%two) {frame="outer", invariant} : i64[]
  %z = enter(%zero) {frame="outer", invariant} : i64[]
  %i = loop_merge(%ei, %ni) : i64[]
  %t = loop_merge(%et, %nt) : i64[]
  %p = less(%i, %m) : bool[]
  %c = loop_cond(%p) : bool[]
  %io, %ii = switch(%i, %c) : i64[], i64[]
  %to, %ti = switch(%t, %c) : i64[], i64[]
  %rest = remainder(%ii, %d) : i64[]
  %trips = multiply(%ii, %rest) : i64[]
  %zp = identity(%z) after %ii : i64[]
  %ej = enter(%zp) {frame="inner"} : i64[]
  %eu = enter(%ti) {frame="inner"} : i64[]
  %mm = enter(%trips) {frame="inner", invariant} : i64[]
  %ss = enter(%s) {frame="inner", invariant} : i64[]
  %j = loop_merge(%ej, %nj) : i64[]
  %u = loop_merge(%eu, %nu) : i64[]
  %q = less(%j, %mm) : bool[]
  %cc = loop_cond(%q) : bool[]
  %jo, %ji = switch(%j, %cc) : i64[], i64[]
  %uo, %ui = switch(%u, %cc) : i64[], i64[]
  %j1 = add(%ji, %ss) : i64[]
  %nj = next_iteration(%j1) : i64[]
  %u1 = add(%ui, %ss) : i64[]
  %nu = next_iteration(%u1) : i64[]
  %sum = exit(%uo) : i64[]
  %i1 = add(%ii, %s) : i64[]
  %ni = next_iteration(%i1) : i64[]
  %nt = next_iteration(%sum) : i64[]
  %r = exit(%to) : i64[]
  return %r
}"""


def loop(frame: str, start: str, limit: str, step: str) -> str:
    """The text of a loop that counts from a value; its result is named after the frame."""
    f = frame
    return f"""%{f}1 = enter({start}) {{frame="{f}"}} : i64[]
      %{f}2 = enter({limit}) {{frame="{f}", invariant}} : i64[]
      %{f}3 = enter({step}) {{frame="{f}", invariant}} : i64[]
      %{f}4 = loop_merge(%{f}1, %{f}9) : i64[]
      %{f}5 = less(%{f}4, %{f}2) : bool[]
      %{f}6 = loop_cond(%{f}5) : bool[]
      %{f}o, %{f}7 = switch(%{f}4, %{f}6) : i64[], i64[]
      %{f}8 = add(%{f}7, %{f}3) : i64[]
      %{f}9 = next_iteration(%{f}8) : i64[]
      %{f} = exit(%{f}o) : i64[]"""


BRANCHES = f"""graph @g(%p: bool[], %x: i64[], %n: i64[], %s: i64[]) -> (i64[]) {{
  %xn, %xy = switch(%x, %p) : i64[], i64[]
  %nn, %ny = switch(%n, %p) : i64[], i64[]
  %sn, %sy = switch(%s, %p) : i64[], i64[]
  {loop("a", "%xy", "%ny", "%sy")}
  BRANCH
  return %r
}}"""


class Log:
    """Notes what runs where."""

    def __init__(self) -> None:
        self.entries: list[tuple[str, Tag, bool]] = []

    def __call__(self, node: Node, tag: Tag, dead: bool) -> None:
        self.entries.append((node.op.name, tag, dead))

    def where(self, name: str, dead: bool = False) -> list[Tag]:
        return [tag for op, tag, is_dead in self.entries if op == name and is_dead == dead]

    def width(self) -> int:
        """Return how many iterations of the outer frame were alive at once."""
        newest = widest = 0
        for iteration in [tag[0][1] for _, tag, _ in self.entries if tag]:
            newest = max(newest, iteration)
            widest = max(widest, newest - iteration + 1)
        return widest
