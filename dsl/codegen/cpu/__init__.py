"""The CPU back end. `jit` turns LLVM IR into code in this process, by way of the disk cache of `cache`."""
