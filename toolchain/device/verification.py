"""Compare the outputs of a device with the reference outputs of a bundle."""

from __future__ import annotations

from dataclasses import dataclass

from toolchain import bundle as bundles
from toolchain import rankings, tensors
from toolchain.bundle import Bundle
from toolchain.bundle.manifest import Manifest
from toolchain.device.runner import Run
from toolchain.errors import OutputError, VerificationError
from toolchain.models import inputs
from toolchain.rankings import Ranking
from toolchain.tensors import Difference, Tensors, Tolerance


@dataclass(frozen=True)
class Samples:
    """The inputs and the expected outputs of a smoke run.

    Attributes:
        inputs: Inputs by name.
        expected: Reference outputs by name, or None if there is no reference.
        runtime: Name of the runtime that computed the reference.
        tolerance: The reference's own limits for the relative difference, if it has some.
        rankings: The outputs whose rows are sorted by scores.
    """

    inputs: Tensors
    expected: Tensors | None
    runtime: str = ""
    tolerance: Tolerance | None = None
    rankings: tuple[Ranking, ...] = ()


def check_referenced(bundle: Bundle, *, unchecked: bool) -> None:
    """Refuse a bundle without its reference, unless it is deployed with --unchecked.

    Raises:
        VerificationError: The bundle has no reference.
    """
    if bundle.reference is None and not unchecked:
        record = bundle.manifest.reference
        raise VerificationError(
            f"{bundle.manifest.name} has no reference outputs, so its results cannot be verified",
            details=f"the reference has sha256 {record.sha256}" if record else "it was built without one",
            hint="use a package from `toolchain pull` or `toolchain package`, or skip the check with --unchecked",
        )


def samples_of(bundle: Bundle, *, unchecked: bool = False) -> Samples:
    """Read a bundle's reference; without one, if `unchecked`, return random inputs and no expected outputs.

    Raises:
        VerificationError: As `check_referenced`; or the reference is not valid.
    """
    check_referenced(bundle, unchecked=unchecked)
    if bundle.reference is None:
        return Samples(inputs.random(bundle.manifest.inputs, seed=0), None)
    reference = bundles.Reference.read(bundle.reference)
    reference.check(bundle.manifest)
    reference.check_comparable()
    return Samples(reference.inputs, reference.outputs, reference.runtime, reference.tolerance, reference.rankings)


def check_outputs(run: Run, samples: Samples, manifest: Manifest, tolerance: float | None) -> Difference | None:
    """Compare a run's outputs with the reference.

    Raises:
        OutputError: They differ by more than the tolerance, or do not have the model's signature.
    """
    faults = tensors.check_signature(run.outputs, manifest.outputs)
    if faults:
        raise OutputError("the device's outputs do not have the model's signature", details="\n".join(faults))
    if samples.expected is None:
        return None
    limit = samples.tolerance if tolerance is None else tolerance
    outputs = tensors.cut(run.outputs, manifest.outputs)
    difference = rankings.compare(outputs, samples.expected, samples.rankings, limit)
    if tolerance is not None:
        difference = tensors.as_option(difference)
    if not difference.ok:
        raise OutputError(
            f"the device's outputs differ from the reference for {manifest.name}",
            details=f"largest relative difference {difference.max_rel:.3g}, tolerance {difference.tolerance:.3g}; "
            f"largest absolute difference {difference.max_abs:.3g}",
            hint="the device keeps its previous release; use --tolerance to set another limit",
        )
    return difference
