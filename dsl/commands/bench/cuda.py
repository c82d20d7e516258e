"""`python -m dsl bench cuda`: dsl on an NVIDIA GPU beside CuPy, JAX and PyTorch; with `--static`, what needs no GPU.

Every contender gets arrays on the GPU, and waiting for the result is part of its time. As in the CPU's benchmark they take
turns, the best of several samples counts, and results are compared with NumPy's.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import dsl
from dsl.codegen.cuda.cupy_driver import import_cupy
from dsl.codegen.cuda.devices import gpu
from dsl.commands.bench.case import Function, Way
from dsl.commands.bench.gpu_case import GpuCase
from dsl.commands.bench.load import gpu_cases, matching
from dsl.commands.bench.measure import Pace, Result, measure
from dsl.commands.bench.peers import Dsl, Jax, Peer, Torch, TorchCompile, double, make_peers
from dsl.commands.bench.report import describe, failures, record, save, tables
from dsl.commands.progress import progress
from dsl.config import config
from dsl.errors import ConfigError, DeviceError
from dsl.ir.devices import DeviceName

__all__ = ["PEERS", "run_cuda"]

DEVICE = "cuda:0"


def run_cuda(given: argparse.Namespace, paces: dict[str, Pace]) -> int:
    """Do what the words of the command line say; return the exit code."""
    cases = _chosen(given)
    if given.list:
        print("\n".join(f"{case.name:<24}  {case.row}" for case in cases))
        return 0
    if given.static:
        from dsl.commands.bench.cuda_static import run_static

        return run_static(cases, given.json)
    _need_gpu()
    mode = "quick" if given.quick else "full" if given.full else "short"
    return _race(cases, _peer_names(given), mode, paces[mode], given.json)


def _race(
    cases: Sequence[GpuCase], names: Sequence[str], mode: str, pace: Pace, file: Path | None
) -> int:
    results: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="dsl-bench-") as folder:
        peers, missing = make_peers(names, PEERS, CudaDsl(Path(folder)))
        left_out = [f"{name} ({reason})" for name, reason in missing.items()]
        if left_out:
            print(f"Left out: {', '.join(left_out)}", file=sys.stderr)
        facts = describe(peers, left_out, mode) | {"device": DEVICE}
        with config.override(cache_dir=folder):
            for peer in peers.values():
                peer.start()
            for case in progress(cases, "benchmarks"):
                results.append(measure(case, peers, pace, quick=mode == "quick"))
                if file:
                    save(file, record(results, facts))
    print(tables(results, [name for name in peers if name != "dsl"]))
    wrong = [line for line in failures(results) if " wrong: " in line]
    return 1 if wrong or failures(results, of="dsl") else 0


def _need_gpu() -> None:
    """Refuse in one sentence where there is no GPU."""
    try:
        gpu(DeviceName(0, "cuda", 0))
    except DeviceError as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(
            f"this benchmark runs on an NVIDIA GPU: {reason}",
            remedy="`python -m dsl bench cuda --static` tells of the kernels what needs no GPU",
        ) from None


def _chosen(given: argparse.Namespace) -> list[GpuCase]:
    cases = gpu_cases()
    if not given.case:
        return cases
    if not (found := matching(cases, given.case)):
        raise ConfigError(
            f"no case matches {' or '.join(given.case)}",
            remedy="`python -m dsl bench cuda --list` names them all",
        )
    return found


def _peer_names(given: argparse.Namespace) -> list[str]:
    if given.peers is not None:
        return [name for name in given.peers.split(",") if name]
    return [name for name in PEERS if name != "torch.compile" or given.full]


# --- Contenders ----------------------------------------------------------------------------------


class OnGpu(Peer):
    """What those have in common whose arrays are CuPy's."""

    module = "cupy"

    def load(self) -> dict[str, Any]:
        self.cupy = import_cupy()
        return {"np": self.cupy, "cupy": self.cupy}

    def give(self, argument: Any) -> Any:
        return self.cupy.asarray(argument) if isinstance(argument, np.ndarray) else argument

    def wait(self, result: Any) -> Any:
        self.cupy.cuda.get_current_stream().synchronize()
        return result

    def take(self, result: Any) -> Any:
        return self.cupy.asnumpy(result) if isinstance(result, self.cupy.ndarray) else result

    def call_text(self, names: Any, result: Any) -> str:
        return f"wait({super().call_text(names, result)})"


class CudaDsl(OnGpu, Dsl):
    """dsl, compiled for the first GPU."""

    module = "dsl"
    compiles = True

    def start(self) -> None:
        self.wait(self.build(Way(double))(self.give(np.ones(8))))

    def build(self, way: Way) -> Function:
        made: Function = dsl.jit(device=DEVICE, **way.options)(way.function)
        return made


class CudaJax(Jax):
    """JAX, whose first device must be a GPU."""

    platform = None

    def load(self) -> dict[str, Any]:
        names = super().load()
        if self.jax.default_backend() != "gpu":
            raise DeviceError("jax sees no GPU")
        return names


class CudaTorch(Torch):
    """PyTorch, with tensors on the GPU and single precision left as it is."""

    def load(self) -> dict[str, Any]:
        names = super().load()
        if not self.torch.cuda.is_available():
            raise DeviceError("torch sees no GPU")
        return names

    def give(self, argument: Any) -> Any:
        given = super().give(argument)
        return given.to(DEVICE) if isinstance(argument, np.ndarray) else given

    def wait(self, result: Any) -> Any:
        self.torch.cuda.synchronize()
        return result

    def take(self, result: Any) -> Any:
        return super().take(result.cpu() if hasattr(result, "cpu") else result)

    def call_text(self, names: Any, result: Any) -> str:
        return f"wait({super().call_text(names, result)})"


class CudaTorchCompile(CudaTorch, TorchCompile):
    """The same through torch.compile."""


PEERS: dict[str, type[Peer]] = {
    "numpy": Peer, "cupy": OnGpu, "jax": CudaJax, "torch": CudaTorch, "torch.compile": CudaTorchCompile,
}  # fmt: skip
