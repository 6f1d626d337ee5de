"""A deploy, from what a user names to a report: the stages from top to bottom."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolchain import temporary
from toolchain.bundle import Bundle, check_board
from toolchain.bundle.manifest import Manifest
from toolchain.device import bench, deploy, verification
from toolchain.device.bench import Measurement
from toolchain.device.connected import ConnectedDevice
from toolchain.device.deploy import Settings
from toolchain.device.installed import DeviceRelease
from toolchain.device.lock import Owner
from toolchain.device.probe.facts import DeviceFacts
from toolchain.models import inputs
from toolchain.models.inputs import Guess
from toolchain.native.programs import Program
from toolchain.pipeline import device_programs, preflight, steps, variants
from toolchain.pipeline.report import Report
from toolchain.pipeline.source import BundleSource, Loaded
from toolchain.progress import Stages, stage
from toolchain.tensors import Tensors

if TYPE_CHECKING:
    from toolchain.pipeline.evaluate import Evaluation, Prepared, Requirement

Connect = Callable[[], AbstractContextManager[ConnectedDevice]]


@dataclass(frozen=True)
class Conversion:
    """A float model that becomes int8 on the way."""

    floats: BundleSource
    write: Callable[[], Mapping[str, Any]]  # writes the file that is built; returns what `quantize --json` says


@dataclass(frozen=True)
class Job:
    """A deploy as a user requests it."""

    source: BundleSource
    connect: Connect  # is called twice: for the checks before the build, and for the deploy
    settings: Settings
    folder: Path | None = None  # where the bundle is kept; None to keep none
    conversion: Conversion | None = None  # writes the model of `source`
    tune: Callable[[], object] | None = None  # tunes the model before it is built
    requirement: Requirement | None = None  # what the release must keep on the user's samples, or it is refused
    # Returns what else makes the result doubtful
    warnings: Callable[[ConnectedDevice, DeviceFacts], tuple[str, ...]] = lambda _device, _facts: ()


def deploy_model(job: Job) -> Report:
    """Check everything that can be checked, build or open the bundle, and deploy it.

    Raises:
        ToolchainError: With its cause; the device keeps the release that it had, unless only the measurement failed.
    """
    source, stages, requirement = job.source, job.source.stages, job.requirement
    own_samples = requirement.samples.open() if requirement else None
    with temporary.folder() as scratch, contextlib.ExitStack() as stack:
        folder = job.folder or Path(scratch) / "bundle"
        # Records that the build will use may be made only now, by tuning.
        given = job.conversion.floats if job.conversion else source
        checkable = replace(given, request=replace(given.request, records=None)) if job.tune else given
        checks = preflight.before_deploy(checkable, folder, job.connect, job.settings.labels)
        checked: Bundle | Loaded | None = checks.subject
        quantized = None
        if job.conversion:
            with stages.timed("quantize"):
                quantized, checked = job.conversion.write(), None
        if job.tune:
            job.tune()
        bundle, runner = obtain_with_runner(source, folder, checked, checks.triple)
        acceptance = None
        if requirement and own_samples:
            from toolchain.pipeline import evaluate  # noqa: PLC0415 - a second of statistics, which few deploys need

            with stages.timed("reference"):
                prepared = evaluate.prepare(own_samples, requirement.files, bundle.manifest, stages.tell)
            acceptance = _Acceptance(prepared, requirement.most_lost, stages)
        with stages.timed("connect"):
            device = stack.enter_context(job.connect())
        settings = replace(job.settings, accept=acceptance)
        report = deploy_bundle(bundle, runner, device, settings, stages, source.own_inputs)
        evaluation = acceptance.evaluation if acceptance else None
        return replace(report, warnings=job.warnings(device, report.facts), evaluation=evaluation, quantized=quantized)


@dataclass
class _Acceptance:
    """Runs the user's samples before a release becomes current, and refuses one that loses too much."""

    prepared: Prepared
    most_lost: float
    stages: Stages
    evaluation: Evaluation | None = None  # once the device has run them

    def __call__(self, release: DeviceRelease) -> None:
        with self.stages.timed("evaluation"):
            self.evaluation = self.prepared.finish(release, release.manifest.name, self.most_lost, installed=True)
        if fault := self.evaluation.fault():
            hint = f"the device keeps its previous release; {fault.hint}"
            raise type(fault)(fault.message, details=fault.details, hint=hint)


def obtain_with_runner(
    source: BundleSource, folder: Path, checked: Bundle | Loaded | None, triple: str
) -> tuple[Bundle, Program]:
    """Open or build a bundle, as `BundleSource.obtain`, while the runner for a device's triple is built."""
    with device_programs.building_runner(triple):
        return source.obtain(folder, checked), device_programs.runner(triple, source.stages)


def deploy_bundle(
    bundle: Bundle,
    runner: Program,
    device: ConnectedDevice,
    settings: Settings,
    stages: Stages,
    own_inputs: inputs.Source | None = None,
) -> Report:
    """Ship a bundle to a device, verify its outputs there, activate it, and measure it.

    It is measured with `own_inputs`, or with the inputs of its reference.

    Raises:
        VerificationError: It was built for another board; and as `deploy.deploy`.
    """
    manifest = bundle.manifest
    check_board(manifest, device.board)
    labels = read_labels(settings.labels, manifest)
    library = device_programs.library(device.triple, stages) if settings.library else None
    arrays = _measured_arrays(bundle, own_inputs)
    stages.tell(stage(f"deploying {manifest.name} to {device.store.place}"))
    with device.store.lock(Owner.here(f"deploy {manifest.name}")):
        deployment = deploy.deploy(bundle, runner, device, settings, stages, library)
        bench.check_current(device.store, bundle.digest, device.name)
        measured = variants.measure(runner, device, arrays, settings, stages)
    first = next(iter(measured))
    checked = {variant.name: variant for variant in deployment.variants}
    of_first = checked.get(first, deployment)  # which is not the release's first, where the user's arrays fit another
    return Report(
        board=device.board.name,
        host=device.name,
        model=manifest.name,
        bundle_digest=bundle.digest,
        emulated=device.emulated,
        facts=deployment.facts,
        stages=stages.seconds,
        measurement=measured[first],
        variants=variants.results(manifest, measured, checked),
        reference=deployment.reference,
        difference=of_first.difference,
        transfer=deployment.transfer,
        top=top_classes(labels, measured[first], manifest),
        modelled=manifest.modelled,
        half=manifest.half,
        int8=manifest.int8,
        sparse=manifest.sparse,
        states=manifest.states,
        application=deployment.application,
        fidelity=of_first.fidelity,
        unchecked=deployment.difference is None,
        verified=deployment.verified,
        raw=deployment.raw,
        waited=device.store.waited,
        slot=device.store.slot,
        can_roll_back=len(device.store.releases.generations()) > 1,
    )


def _measured_arrays(bundle: Bundle, own_inputs: inputs.Source | None) -> dict[str, Tensors]:
    """Return what each variant is measured with: the user's inputs, or those of the reference."""
    names = variants.chosen(own_inputs, bundle.manifest)
    if own_inputs:
        return {name: steps.make_inputs(own_inputs, bundle.manifest.of_variant(name)) for name in names}
    return {name: verification.samples_of(bundle, unchecked=True, variant=name).inputs for name in names}


def read_labels(path: Path | None, manifest: Manifest) -> list[str]:
    """Read class names, before anything is deployed, since they may not fit the model."""
    return inputs.read_labels(path, manifest.step_outputs[0].elements) if path else []


def top_classes(labels: list[str], measurement: Measurement, manifest: Manifest) -> tuple[Guess, ...]:
    """Return the best classes of the first output; of a sequence, those of its last step."""
    if not labels:
        return ()
    scores = next(iter(measurement.run.outputs.values()))
    return inputs.top(scores[-1] if manifest.states else scores, labels)
