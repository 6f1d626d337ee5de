"""Tensors of whole numbers on a grid, and sums of products of bytes."""
