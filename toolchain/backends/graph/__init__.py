"""Graphs of kernels as every backend reads and writes them: values, patterns, constants, quantization."""
