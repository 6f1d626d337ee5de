"""Whether both sides compute the same."""

from __future__ import annotations

from collections.abc import Sequence

from toolchain import rankings, tensors
from toolchain.device.runner import Run
from toolchain.device.verification import Samples
from toolchain.errors import VerificationError
from toolchain.pipeline.ab.sides import Side
from toolchain.tensors import Difference


def check_same_outputs(
    sides: Sequence[Side], runs: Sequence[Run], samples: Samples, tolerance: float | None, hint: str
) -> Difference:
    """Compare the outputs of a release with those of its base, for the same inputs.

    `tolerance` is the limit for the relative difference; None for that of the samples.

    Raises:
        VerificationError: They differ by more than the limit.
    """
    new, base = sides
    limit = samples.tolerance if tolerance is None else tolerance
    new_outputs, base_outputs = (tensors.cut(run.outputs, new.manifest.outputs) for run in runs)
    difference = rankings.compare(new_outputs, base_outputs, samples.rankings, limit)
    if not difference.ok:
        raise VerificationError(
            f"{new.label} and {base.label} compute different outputs",
            details=f"largest relative difference {difference.max_rel:.3g}, tolerance {difference.tolerance:.3g}; "
            f"largest absolute difference {difference.max_abs:.3g}",
            hint=hint,
        )
    return difference
