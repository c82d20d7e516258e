"""`dsl.parallel`: what the ranks of `mpirun -n N python script.py` do together.

Every rank runs the same script. `rank()` and `size()` tell them apart; collectives and messages are functions of arrays, in
compiled functions, derivatives and graphs too; `DataParallel` trains a model on shards of its batches. Without `mpirun` there
is one rank, and everything works on it alone.

>>> import numpy as np
>>> rank(), size()
(0, 1)
>>> allreduce(np.array([1.0, 2.0]), "mean")
array([1., 2.])
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from dsl.parallel.collectives import (
    allgather,
    allreduce,
    alltoall,
    barrier,
    broadcast,
    gather,
    rank,
    recv,
    reduce,
    reduce_scatter,
    scatter,
    send,
    sendrecv,
    size,
)

if TYPE_CHECKING:
    from dsl.parallel.checkpoints import ShardedCheckpoints, restore, save
    from dsl.parallel.embeddings import ShardedEmbedding
    from dsl.parallel.gradients import reduce_gradients
    from dsl.parallel.liveness import alive
    from dsl.parallel.servers import BackupWorkers, ParameterServer
    from dsl.parallel.serving import serve
    from dsl.parallel.shards import Shard
    from dsl.parallel.training import DataParallel

__all__ = [
    "BackupWorkers", "DataParallel", "ParameterServer", "Shard", "ShardedCheckpoints", "ShardedEmbedding", "alive",
    "allgather", "allreduce", "alltoall", "barrier", "broadcast", "gather", "rank", "recv", "reduce",
    "reduce_gradients", "reduce_scatter", "restore", "save", "scatter", "send", "sendrecv", "serve", "size",
]  # fmt: skip

_LAZY = {
    "BackupWorkers": "servers", "DataParallel": "training", "ParameterServer": "servers",
    "Shard": "shards", "ShardedCheckpoints": "checkpoints", "alive": "liveness", "restore": "checkpoints", "save": "checkpoints",
    "ShardedEmbedding": "embeddings", "reduce_gradients": "gradients", "serve": "serving",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'dsl.parallel' has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(f"dsl.parallel.{_LAZY[name]}"), name)
    return found
