"""Pictures as inputs: the steps from raw pixels to a model's input, and from its outputs to classes or boxes.

`steps` reads what users write, `plan` checks it against a model. `runtime/pictures/` computes it, on devices and here.
"""

from toolchain.pictures.plan import LARGEST_SIDE, Operation, Pictures, Plan, faults, resolve
from toolchain.pictures.steps import FILE, Steps, beside, read_file

__all__ = [
    "FILE",
    "LARGEST_SIDE",
    "Operation",
    "Pictures",
    "Plan",
    "Steps",
    "beside",
    "faults",
    "read_file",
    "resolve",
]
