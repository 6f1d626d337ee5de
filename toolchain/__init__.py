"""Compile a neural network for a board, deploy it, check it there and measure it there."""

__version__ = "0.1.0"
