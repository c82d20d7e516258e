"""The command line: `python -m dsl <command>`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from dsl.config import did_you_mean
from dsl.errors import DslError

__all__ = ["main"]

COMMANDS = {
    "demo": "a tour of what dsl does today, in a few seconds",
    "doctor": "versions, processor, threads, cache, options and packages, for a bug report",
    "dump": "the IR and kernels of a function: dump module:function f64[3,4] 5",
    "launch": "a script on many ranks, restarted when one fails: launch -n 4 --restarts 3 train.py",
    "bench": "benchmarks against the peers installed; bench --help",
    "help": "this text",
}


def main(words: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code."""
    name, *rest = list(sys.argv[1:] if words is None else words) or ["help"]
    name = {"-h": "help", "--help": "help"}.get(name, name)
    if name not in COMMANDS:
        print(f"error: unknown command {name!r}{did_you_mean(name, COMMANDS)}", file=sys.stderr)
        return 2
    try:
        return _run(name, rest)
    except DslError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # `python -m dsl doctor | head`
        sys.stderr.close()
        return 1


def _run(name: str, words: Sequence[str]) -> int:
    """Commands are imported when they run, so that each starts as fast as it can."""
    if name == "dump":
        return _dump(words)
    if name == "bench":
        from dsl.commands import bench

        return bench.run(words)
    if name == "launch":
        from dsl.commands import launch

        return launch.run(words)
    if words and name != "help":
        print(f"error: {name} takes no arguments, got {' '.join(words)}", file=sys.stderr)
        return 2
    if name == "demo":
        from dsl.commands import demo

        return demo.run()
    if name == "doctor":
        from dsl.commands import doctor

        return doctor.run()
    return _help()


def _dump(words: Sequence[str]) -> int:
    from dsl.commands import dump
    from dsl.compile import STAGES

    parser = argparse.ArgumentParser(prog="python -m dsl dump", description=dump.__doc__)
    parser.add_argument("target", help="module:function")
    parser.add_argument("arguments", nargs="*", help="f64[3,4], 5, name=2.0, ...")
    parser.add_argument(
        "--shape", nargs="+", action="extend", default=[], metavar="ARG", help="more arguments"
    )
    parser.add_argument(
        "--stage", choices=STAGES, help="one stage instead of the graphs and the kernels"
    )
    parser.add_argument("--no-locations", action="store_true", help="leave out the source lines")
    given = parser.parse_args(words)
    stages = [given.stage] if given.stage else []
    return dump.run(
        given.target, [*given.arguments, *given.shape], stages, locations=not given.no_locations
    )


def _help() -> int:
    width = max(map(len, COMMANDS))
    print("python -m dsl <command>\n")
    print("\n".join(f"  {name:<{width}}  {doc}" for name, doc in COMMANDS.items()))
    print("\nDocumentation: docs/index.md. Log topics: DSL_LOGS=help.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
