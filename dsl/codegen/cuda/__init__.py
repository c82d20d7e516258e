"""Code for NVIDIA GPUs: PTX, its launch, and its emulation."""
