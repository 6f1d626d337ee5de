"""Pictures as inputs: the steps from raw pixels to a model's input, and from its outputs to classes or boxes.

`plan` checks the steps that users write against a model. `runtime/pictures/` computes them, on devices and here.
"""

from toolchain.pictures.plan import LARGEST_SIDE, MOST_EXTRAS, Operation, Pictures, Plan, faults, resolve

__all__ = [
    "LARGEST_SIDE",
    "MOST_EXTRAS",
    "Operation",
    "Pictures",
    "Plan",
    "faults",
    "resolve",
]
