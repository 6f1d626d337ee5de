"""Attributes of kernels by which backends and tuner know each other's work."""

LAYER = "toolchain.layer"
"""A kernel that a template of the backend computes: its layer as JSON, which is what it is tuned as."""
EXACT = "toolchain.exact"
"""The same kernel: its layer as JSON with the very buffers that it has in its network."""
