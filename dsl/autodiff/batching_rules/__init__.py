"""How each op runs for all items of a batch: one file per family of ops; `table` finds the rule of an op."""
