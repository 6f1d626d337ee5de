"""Boards without a board: emulated ones, each with an SSH server of its own."""
