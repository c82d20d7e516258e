"""Results as a picture: for every case a bar per peer, with equal speed and the targets marked."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["draw"]

COLOURS = {
    "numpy": "#4d77cf", "numba": "#00a3e0", "jax": "#9c4fb8", "torch": "#ee4c2c", "torch.compile": "#f7a08c",
}  # fmt: skip


def draw(file: Path, record: dict[str, Any]) -> None:
    """Draw the record of a run, as `--json` wrote it; the file's ending says in which format."""
    # By name: matplotlib is optional, and the type checker need not have it.
    figure_module = importlib.import_module("matplotlib.figure")
    cases = [case for case in record["cases"] if case["ratios"]]
    lines = sum(len(case["ratios"]) + 1 for case in cases)
    figure = figure_module.Figure(figsize=(9, 1.5 + 0.16 * lines))
    axes = figure.subplots()
    _draw_bars(axes, cases)
    axes.axvline(1.0, color="black", linewidth=1)
    axes.set_xscale("log")
    axes.set_xlabel("time of the peer / time of dsl; right of the line dsl is faster")
    axes.set_title(", ".join(f"{k} {v}" for k, v in record["versions"].items()), fontsize=8)
    axes.margins(y=0.005)
    axes.grid(axis="x", alpha=0.3)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8, frameon=False)
    figure.savefig(file, bbox_inches="tight", dpi=120)


def _draw_bars(axes: Any, cases: Sequence[dict[str, Any]]) -> None:
    place, ticks, label = 0.0, [], _Once()
    for case in cases:
        begin = place
        for peer, ratio in case["ratios"].items():
            colour = COLOURS[peer]
            axes.barh(place, ratio - 1, left=1, height=0.9, color=colour, label=label(peer))
            for target in case["targets"]:
                if peer in target["peers"]:
                    _draw_target(axes, place, target["ratio"], label("target"))
            place -= 1.0
        ticks.append((0.5 * (begin + place + 1.0), case["name"]))
        place -= 1.0
    axes.set_yticks([y for y, _ in ticks], [name for _, name in ticks], fontsize=7)


def _draw_target(axes: Any, place: float, ratio: float, label: str | None) -> None:
    axes.plot([ratio] * 2, [place - 0.45, place + 0.45], color="black", lw=2, label=label)


class _Once:
    """Gives each label back the first time only, so that the legend has it once."""

    def __init__(self) -> None:
        self.given: set[str] = set()

    def __call__(self, label: str) -> str | None:
        if label in self.given:
            return None
        self.given.add(label)
        return label
