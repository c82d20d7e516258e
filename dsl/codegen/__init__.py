"""Graphs to machine code: loop nests, LLVM IR as text, vector math; `cpu` compiles and links it, and keeps it on disk."""
