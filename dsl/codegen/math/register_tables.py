"""Tables of thirty-two floats, which an instruction of AVX-512 looks up in two registers.

`tanh_at` are points near (k - 1/4) / 4 at which tanh is next to a float, so that `tanh_of` is exact but for a hundredth of its
last place; `tanh_slope` is the derivative there. (Of the floats within 3,000 of (k - 1/4) / 4, the best.)
"""

from __future__ import annotations

import math

__all__ = ["SIZE", "TABLES"]

SIZE = 32
_POINTS = (
    0.0, 0.18747158, 0.43750852, 0.6874732, 0.9374493, 1.187622, 1.4374034, 1.6877428,
    1.9371542, 2.1872573, 2.4380572, 2.687778, 2.937396, 3.187305, 3.4380484, 3.6873164,
    3.9373496, 4.186952, 4.437996, 4.687287, 4.936954, 5.1865277, 5.438306, 5.686415,
    5.938817, 6.1864243, 6.437165, 6.688717, 6.9360695, 7.1889305, 7.4360695, 7.6889305,
)  # fmt: skip

TABLES: dict[str, tuple[float, ...]] = {
    "root": tuple(2.0 ** (k / SIZE) for k in range(SIZE)),
    "tanh_at": _POINTS,
    "tanh_of": tuple(math.tanh(x) for x in _POINTS),
    "tanh_slope": tuple(1.0 / math.cosh(x) ** 2 for x in _POINTS),
}
"""By name; code rounds the numbers to floats."""
