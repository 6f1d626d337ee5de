"""Kernels of layers that compute in int8."""
