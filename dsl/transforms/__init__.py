"""Transformations of functions: derivatives, batches, checkpoints, rules of one's own. Users find them in `dsl`."""
