"""The sets of shapes of a release: each is measured with inputs of its own, in a part of the time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from toolchain.bundle.manifest import Manifest
from toolchain.device import bench
from toolchain.device.bench import Measurement
from toolchain.device.connected import ConnectedDevice
from toolchain.device.deploy import Settings, VariantChecked
from toolchain.device.runner import Plan
from toolchain.device.verification import Fidelity
from toolchain.errors import InputError
from toolchain.models import inputs
from toolchain.native.programs import Program
from toolchain.progress import Stages, stage
from toolchain.tensors import Difference, Tensors, TensorSpec


@dataclass(frozen=True)
class VariantResult:
    """The results of one set of shapes; those of the first one are the report's own, too."""

    name: str
    inputs: tuple[TensorSpec, ...]
    measurement: Measurement
    difference: Difference | None = None  # from the reference; None if its outputs were not compared
    fidelity: Fidelity | None = None  # the comparison of many inputs; None if one was compared


def chosen(source: inputs.Source | None, manifest: Manifest, variant: str = "") -> tuple[str, ...]:
    """Return the variants to measure: the named one, the one that the user's arrays fit, or all.

    Raises:
        InputError: There is no such variant, or the arrays fit none.
    """
    if variant:
        manifest.of_shapes(variant)
        return (variant,)
    return (of_file(source.npz, manifest),) if source and source.npz else manifest.variant_names


def of_file(path: Path, manifest: Manifest) -> str:
    """Return the variant whose inputs have the shapes of a file's arrays; empty for a release without variants.

    Raises:
        InputError: There is none, or the file cannot be read.
    """
    if not manifest.variants:
        return ""
    return manifest.select(inputs.arrays(path, manifest.inputs), path.name)


def check_options(manifest: Manifest, names: tuple[str, ...], settings: Settings) -> None:
    """Refuse measurements that are of one set of shapes.

    Raises:
        InputError: Several are to be measured.
    """
    asked = {"--period": settings.rate, "--energy": settings.energy, "--labels": settings.labels}
    for option, value in asked.items():
        if value and len(names) > 1:
            raise InputError(
                f"{option} is for one of the {len(names)} variants of {manifest.name}",
                details="\n".join(map(str, manifest.variants)),
                hint=f"name one of them: --variant {names[0]}",
            )


def measure(
    runner: Program, device: ConnectedDevice, arrays: Mapping[str, Tensors], settings: Settings, stages: Stages
) -> dict[str, Measurement]:
    """Time variants of the current release of a device whose lock is held, by name, with their inputs.

    All of them together take the time of the settings.
    """
    current = bench.current(device.store, device.name)
    release = current.release(runner, device, settings.threads)
    budget_s = settings.budget_s / len(arrays)
    plan = Plan(budget_s, pinned=settings.pinned, rate=settings.rate)
    measured = {}
    for name, own in arrays.items():
        stages.tell(stage(f"measuring {f'variant {name} ' if name else ''}for {budget_s:g} s"))
        with stages.timed("bench"):
            measured[name] = bench.measure(release.of_variant(name), own, plan, stages.tell)
    return measured


def results(
    manifest: Manifest, measured: Mapping[str, Measurement], checked: Mapping[str, VariantChecked] | None = None
) -> tuple[VariantResult, ...]:
    """Return the results of variants; none for a release with one set of shapes."""
    rows = []
    for name, measurement in measured.items():
        if name:
            of_deploy = (checked or {}).get(name)
            difference, fidelity = (of_deploy.difference, of_deploy.fidelity) if of_deploy else (None, None)
            rows.append(VariantResult(name, manifest.of_shapes(name).inputs, measurement, difference, fidelity))
    return tuple(rows)
