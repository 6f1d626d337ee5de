"""Sounds as inputs: the steps from WAV files or raw samples to a model's input, and from outputs to classes or text.

`plan` checks the steps that users write against a model. `runtime/sounds/` computes them, on devices and here.
"""

from toolchain.sounds.plan import Operation, Plan, Sounds, faults, resolve

__all__ = ["Operation", "Plan", "Sounds", "faults", "resolve"]
