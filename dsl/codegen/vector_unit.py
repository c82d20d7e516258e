"""What this CPU's vector registers and caches are, as NumPy and the system know without loading LLVM."""

from __future__ import annotations

import functools
import importlib
from pathlib import Path

__all__ = ["last_cache_bytes", "register_bytes", "vector_unit"]


@functools.cache
def vector_unit() -> str:
    """Return the widest vectors of this CPU that matrix products are written for."""
    features = _features()
    if features.get("AVX512F") and features.get("AVX512_SKX"):
        return "avx512"
    return "avx2" if features.get("AVX2") and features.get("FMA3") else "plain"


@functools.cache
def register_bytes() -> int:
    """Return the size of the vector registers for which LLVM vectorises loops."""
    features = _features()
    return 64 if features.get("AVX512F") else 32 if features.get("AVX") else 16


@functools.cache
def last_cache_bytes() -> int:
    """Return the size of the largest cache, 0 if the system does not tell."""
    try:
        text = Path("/sys/devices/system/cpu/cpu0/cache/index3/size").read_text().strip()
        return int(text.rstrip("KMG")) << {"K": 10, "M": 20, "G": 30}.get(text[-1:], 0)
    except (OSError, ValueError):
        return 0


def _features() -> dict[str, bool]:
    found: dict[str, bool] = importlib.import_module(
        "numpy._core._multiarray_umath"
    ).__cpu_features__
    return found
