"""Tuning: searches, builds and measures candidates for the kernels of a model, and records the results."""
