"""Compare a device with its reference over many inputs: a kernel may be wrong for values that one input lacks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolchain import bundle as bundles
from toolchain import files, rankings, tensors
from toolchain.bundle import Bundle
from toolchain.bundle.manifest import Manifest
from toolchain.bundle.reference import RandomSamples
from toolchain.device import sampling
from toolchain.device.installed import DeviceRelease
from toolchain.device.shipment import Tell
from toolchain.errors import InputError, OutputError, VerificationError
from toolchain.models import series
from toolchain.tensors import Difference, Tensors

_CLASSES_RANK, _FEWEST_CLASSES = 2, 2


@dataclass(frozen=True)
class Fidelity:
    """The result of comparing many samples.

    Attributes:
        samples: Number of samples.
        seed: Seed of the first sample; each next sample has the next number.
        worst: Index of the sample with the largest difference; one beyond its tolerance, if there is any.
        difference: The difference of that sample.
        beyond: Number of samples beyond their tolerance.
        flips: Number of rows of the first output with another largest element; None if the output has no classes.
        rows: Number of these rows.
    """

    samples: int
    seed: int
    worst: int
    difference: Difference
    beyond: int
    flips: int | None
    rows: int


def random_reference(bundle: Bundle, count: int) -> RandomSamples | None:
    """Return the reference outputs of the first `count` random samples of a bundle; None for a single sample.

    Raises:
        InputError: The bundle has fewer samples.
        VerificationError: Its reference cannot be read.
    """
    if count == 1:
        return None
    reference = bundles.Reference.read(bundle.reference).random if bundle.reference else None
    available = len(reference.samples) if reference else 1 if bundle.reference else 0
    if reference is None or available < count:
        origin = bundle.manifest.model.get("origin", "MODEL")
        raise InputError(
            f"--samples {count} is more than the reference of {bundle.manifest.name} has: {available}",
            details="a bundle can only be compared with the reference outputs that it was built with",
            hint=f"build a bundle with more: `toolchain build {origin} --samples {count}`; or deploy the model itself",
        )
    return RandomSamples(
        reference.seed, reference.samples[:count], reference.outputs[:count], reference.rankings[:count]
    )


def check(
    release: DeviceRelease, reference: RandomSamples, tolerance: float | None, progress: Tell | None = None
) -> Fidelity:
    """Run a release on random samples and compare its outputs with the reference.

    Args:
        release: The release, installed on its device; the caller holds the lock.
        reference: The reference outputs.
        tolerance: Limit for the outputs' relative difference; None for that of each sample.
        progress: Called with progress.

    Raises:
        DeviceError: As `sampling.run_all`.
        OutputError: Outputs of a sample differ by more than its tolerance.
        VerificationError: This machine generates other inputs from the seed.
    """
    samples = series.random(release.manifest.inputs, reference.seed, len(reference.samples))
    for number, sample in enumerate(reference.samples):
        arrays = {name: value[0] for name, value in samples.take(range(number, number + 1)).items()}
        if files.sha256_bytes(tensors.encode(arrays)) != sample.sha256:
            raise VerificationError(
                "this machine's random inputs differ from those that the reference was computed for",
                details=f"sample {number}: numpy {np.__version__}",
                hint="install the versions in requirements.lock (`make setup`), or deploy the model itself",
            )
    outputs = sampling.run_all(release, samples, progress).outputs
    fidelity = compare(outputs, reference, release.manifest, tolerance)
    if fidelity.beyond:
        worst, seed = fidelity.difference, fidelity.seed + fidelity.worst
        flips = "" if fidelity.flips is None else f"\na different class in {fidelity.flips} of {fidelity.rows}"
        raise OutputError(
            f"the device's outputs differ from the reference for {release.manifest.name}, "
            f"on {fidelity.beyond} of {fidelity.samples} samples",
            details=f"sample {fidelity.worst} (seed {seed}): largest relative difference {worst.max_rel:.3g}, "
            f"tolerance {worst.tolerance:.3g}; largest absolute difference {worst.max_abs:.3g}{flips}",
            hint="the device keeps its previous release; use --tolerance to set another limit",
        )
    return fidelity


def compare(outputs: Tensors, reference: RandomSamples, manifest: Manifest, tolerance: float | None = None) -> Fidelity:
    """Compare outputs with the reference, sample by sample.

    Args:
        outputs: Outputs of the device, (samples, ...) by name.
        reference: The reference outputs.
        manifest: The manifest of the release.
        tolerance: Limit for the relative difference; None for that of each sample.

    Raises:
        VerificationError: Names or shapes differ.
    """
    count = len(reference.samples)
    computed = [
        tensors.cut({name: value[number] for name, value in outputs.items()}, manifest.outputs)
        for number in range(count)
    ]
    differences = [
        rankings.compare(arrays, expected, order, sample.tolerance if tolerance is None else tolerance)
        for arrays, expected, sample, order in zip(
            computed, reference.outputs, reference.samples, reference.rankings or ((),) * count, strict=True
        )
    ]
    worst = max(range(count), key=lambda number: (not differences[number].ok, differences[number].max_rel))
    first = manifest.outputs[0].name
    flips = _count_flips([arrays[first] for arrays in computed], [arrays[first] for arrays in reference.outputs])
    rows = sum(len(arrays[first]) for arrays in computed) if flips is not None else 0
    beyond = sum(not difference.ok for difference in differences)
    return Fidelity(count, reference.seed, worst, differences[worst], beyond, flips, rows)


def _count_flips(computed: Sequence[NDArray[Any]], reference: Sequence[NDArray[Any]]) -> int | None:
    """Count the rows with another largest element; None if the outputs are not (..., classes)."""
    if any(scores.ndim != _CLASSES_RANK or scores.shape[-1] < _FEWEST_CLASSES for scores in reference):
        return None
    pairs = zip(computed, reference, strict=True)
    return int(sum(np.count_nonzero(scores.argmax(-1) != right.argmax(-1)) for scores, right in pairs))
