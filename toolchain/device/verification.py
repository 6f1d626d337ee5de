"""Compare the outputs of a device with the reference outputs of a bundle, for one input or for many random ones.

A kernel may be wrong for values that one input lacks.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolchain import files, rankings, states, tensors
from toolchain.bundle import Bundle
from toolchain.bundle.manifest import Manifest
from toolchain.bundle.reference import RandomSamples, Reference
from toolchain.device import sampling
from toolchain.device.installed import DeviceRelease
from toolchain.device.runner import Run
from toolchain.device.shipment import Tell
from toolchain.errors import InputError, OutputError, VerificationError
from toolchain.models import inputs, series
from toolchain.rankings import Ranking
from toolchain.tensors import Difference, Tensors, Tolerance

_CLASSES_RANK, _FEWEST_CLASSES = 2, 2


@dataclass(frozen=True)
class Samples:
    """The inputs and the expected outputs of a smoke run.

    Attributes:
        inputs: Inputs by name.
        expected: Reference outputs by name, or None if there is no reference.
        runtime: Name of the runtime that computed the reference.
        tolerance: The reference's own limits for the relative difference, if it has some.
        rankings: The outputs whose rows are sorted by scores.
        picture: RGB pixels, or a file's bytes, for the release's own steps; None if it has none for pictures.
        sound: The bytes of a WAV file for the release's own steps; None if it has none for sounds.
    """

    inputs: Tensors
    expected: Tensors | None
    runtime: str = ""
    tolerance: Tolerance | None = None
    rankings: tuple[Ranking, ...] = ()
    picture: NDArray[np.uint8] | None = None
    sound: NDArray[np.uint8] | None = None

    @property
    def last_step(self) -> Samples:
        """The last step of a sequence, as a sequence of one."""
        expected = {name: value[-1:] for name, value in self.expected.items()} if self.expected else None
        inputs = {name: value[-1:] for name, value in self.inputs.items()}
        return replace(self, inputs=inputs, expected=expected, rankings=())


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


def samples_of(bundle: Bundle, *, unchecked: bool = False, variant: str = "") -> Samples:
    """Read a bundle's reference; without one, if `unchecked`, return random inputs and no expected outputs.

    `variant` is one of several sets of shapes; empty for the first.

    Raises:
        VerificationError: As `check_referenced`; or the reference is not valid.
    """
    check_referenced(bundle, unchecked=unchecked)
    if bundle.reference is None:
        return Samples(random_inputs(bundle.manifest.of_variant(variant)), None)
    reference = _read_reference(bundle)
    reference.check(bundle.manifest)
    reference = reference.of_variant(variant)
    reference.check_comparable()
    return Samples(
        reference.inputs,
        reference.outputs,
        reference.runtime,
        reference.tolerance,
        reference.rankings,
        reference.picture if bundle.manifest.pictures else None,
        reference.sound if bundle.manifest.sounds else None,
    )


def _read_reference(bundle: Bundle) -> Reference:
    """Read a bundle's reference; each variant of a bundle asks for it, and it is read once."""
    path = bundle.reference
    if path is None:
        raise ValueError(f"{bundle.manifest.name} has no reference")
    if not bundle.manifest.variants:
        return Reference.read(path)
    status = path.stat()
    return _read_once(path, (status.st_mtime_ns, status.st_size, status.st_ino))


@functools.lru_cache(maxsize=1)
def _read_once(path: Path, _status: tuple[int, ...]) -> Reference:
    return Reference.read(path)


def random_inputs(manifest: Manifest) -> Tensors:
    """Draw inputs for a run of a release; of one with a state, those of a sequence."""
    return inputs.make(inputs.Source(), manifest.step_inputs, is_sequence=bool(manifest.states))


def check_outputs(run: Run, samples: Samples, manifest: Manifest, tolerance: float | None) -> Difference | None:
    """Compare a run's outputs with the reference.

    Raises:
        OutputError: They differ by more than the tolerance, or do not have the model's signature.
    """
    steps = manifest.steps(samples.inputs)
    faults = tensors.check_signature(run.outputs, states.stacked(manifest.step_outputs, steps))
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


def random_reference(bundle: Bundle, count: int, variant: str = "") -> RandomSamples | None:
    """Return the reference outputs of the first `count` random samples of a bundle; None for a single sample.

    `variant` is one of several sets of shapes; empty for the first.

    Raises:
        InputError: The bundle has fewer samples.
        VerificationError: Its reference cannot be read.
    """
    if count == 1:
        return None
    reference = _read_reference(bundle).of_variant(variant).random if bundle.reference else None
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


def check_samples(
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
    samples = series.random(release.manifest.step_inputs, reference.seed, len(reference.samples))
    # The bundle stores a seed and digests, not the inputs: another version of numpy may draw other numbers.
    for number, sample in enumerate(reference.samples):
        arrays = {name: value[0] for name, value in samples.take(range(number, number + 1)).items()}
        if files.sha256_bytes(tensors.encode(arrays)) != sample.sha256:
            raise VerificationError(
                "this machine's random inputs differ from those that the reference was computed for",
                details=f"sample {number}: numpy {np.__version__}",
                hint="install the versions in requirements.lock (`make setup`), or deploy the model itself",
            )
    outputs = sampling.run_all(release, samples, progress).outputs
    fidelity = compare_samples(outputs, reference, release.manifest, tolerance)
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


def compare_samples(
    outputs: Tensors, reference: RandomSamples, manifest: Manifest, tolerance: float | None = None
) -> Fidelity:
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
    # A sample beyond its limit is worse than any other, as each sample may have a limit of its own.
    worst = max(range(count), key=lambda number: (not differences[number].ok, differences[number].max_rel))
    first = manifest.step_outputs[0].name
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
