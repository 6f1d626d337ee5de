"""Run the same samples through the user's model in ONNX Runtime and on a device, and score both."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import toolchain
from toolchain import interrupts, temporary
from toolchain.bundle.manifest import Manifest
from toolchain.device.installed import DeviceRelease, installed_temporarily
from toolchain.errors import InputError
from toolchain.models import reference, zoo
from toolchain.models.source import SourceModel, load
from toolchain.pipeline import ab
from toolchain.pipeline.evaluate import causes
from toolchain.pipeline.evaluate.data import Sample
from toolchain.pipeline.evaluate.journal import Journal
from toolchain.pipeline.evaluate.paired import Verdict
from toolchain.pipeline.evaluate.result import COMPILED, DEVICE, REFERENCE, Evaluation, Side
from toolchain.pipeline.evaluate.scoring import LabelledSamples, SampleRequest, Scoring, outputs_of_model
from toolchain.progress import Progress, Step, stage

_PIECE = 64  # samples that ONNX Runtime computes between two entries in the journal


@dataclass(frozen=True)
class ModelFiles:
    """The files that ONNX Runtime runs."""

    model: str = ""  # the user's model; empty for the zoo's network that the package was built from
    compiled: str = ""  # the file that the package was built from, if it is another one
    fixed: Mapping[str, str] = field(default_factory=dict)  # values of inputs that became constants
    seed: int = 0  # of a zoo network's weights


@dataclass(frozen=True)
class EvaluationRequest:
    """What to evaluate, on which samples, and how."""

    release: ab.Request  # of one release
    samples: SampleRequest
    files: ModelFiles
    most_lost: float | None = None
    threads: int = 0


@dataclass(frozen=True)
class _Work:
    """The samples of an evaluation, and the journals of its sides."""

    scoring: Scoring
    progress: Progress
    journals: list[Journal] = field(default_factory=list)  # those that were opened

    @property
    def samples(self) -> Sequence[Sample]:
        return self.scoring.samples

    def journal(self, *side: Any) -> Journal:
        """Open the journal of a side, which these values identify."""
        reader, metric = self.scoring.reader, self.scoring.metric
        own, outputs = reader.preprocess, [spec.name for spec in self.scoring.manifest.outputs]
        shapes = [str(spec) for spec in self.scoring.manifest.inputs]
        scoring = [toolchain.__version__, metric.name, metric.digest, outputs, shapes]
        reading = [reader.dataset.digest, *([own.name, own.digest] if own else [])]
        journal = Journal.of(scoring, reading, *side)
        self.journals.append(journal)
        return journal


@dataclass(frozen=True)
class Prepared:
    """The samples of an evaluation, which ONNX Runtime has run."""

    work: _Work
    sides: tuple[Side, ...]
    notes: tuple[str, ...]
    source: SourceModel  # the model that the device is to compute

    def finish(self, release: DeviceRelease, package: str, most_lost: float | None, *, installed: bool) -> Evaluation:
        """Run the samples on a locked device; a release that is not `installed` is removed from it afterwards.

        Raises:
            DeviceError: The device is lost, busy or full, or the model does not run on it.
            VerificationError, InputError: An output has no score.
        """
        scoring, device = self.work.scoring, release.device
        side = _run_device(self.work, release, installed=installed)
        for journal in self.work.journals:
            journal.remove()
        evaluation = Evaluation(
            model=scoring.manifest.name,
            package=package,
            digest=release.digest,
            board=device.board.name,
            host=device.name,
            emulated=device.emulated,
            metric=scoring.metric,
            dataset=scoring.reader.dataset,
            labels=tuple(scoring.reader.target(sample).label for sample in scoring.samples),
            sides=(*self.sides, side),
            most_lost=most_lost,
            notes=self.notes,
        )
        if not any(comparison.verdict is Verdict.WORSE for comparison in evaluation.comparisons):
            return evaluation
        self.work.progress(stage("looking for the cause of the loss"))
        cause = causes.name_cause(reference.open_model(self.source), scoring.first)
        return replace(evaluation, notes=(*self.notes, cause)) if cause else evaluation


def prepare(samples: LabelledSamples, files: ModelFiles, manifest: Manifest, progress: Progress) -> Prepared:
    """Check that a release and its model fit the samples, and run them in ONNX Runtime.

    Raises:
        InputError: They do not.
    """
    sources = _sources(files, manifest)
    work = _Work(samples.of(manifest), progress)
    sides = tuple(_run_reference(work, name, source) for name, source in sources.items())
    return Prepared(work, sides, _notes(sources, manifest), sources.get(COMPILED, sources[REFERENCE]))


def evaluate(request: EvaluationRequest) -> Evaluation:
    """Evaluate a release on samples.

    Raises:
        ToolchainError: The data, the model or the metric do not fit, all of which is checked before a package is sent
            to the device; or as `ab.lock_sides`.
    """
    samples = request.samples.open()
    with temporary.folder() as folder:
        release = request.release
        (side,) = release.open_local(folder)
        if side:
            release.check([side])
        else:
            with release.connect() as device:
                (side,) = release.resolve([None], device)
        prepared = prepare(samples, request.files, side.manifest, release.progress)
        name = str(side.bundle.folder) if side.bundle else side.digest
        with ab.lock_sides(replace(release, names=(name,)), "evaluate") as locked:
            device_release = locked.sides[0].release(locked.program, locked.device, request.threads)
            return prepared.finish(device_release, side.label, request.most_lost, installed=False)


def _notes(sources: Mapping[str, SourceModel], manifest: Manifest) -> tuple[str, ...]:
    built = sources.get(COMPILED, sources[REFERENCE])
    if built.sha256 == manifest.model.get("sha256"):
        return ()
    text = (
        f"{built.origin} is another file than {manifest.model.get('origin', 'the one')} that the package was built from"
    )
    return (f"{text}: a loss includes the differences of the two files (--compiled FILE separates them)",)


def _sources(model_files: ModelFiles, manifest: Manifest) -> dict[str, SourceModel]:
    """Read the models that ONNX Runtime is to run, by the name of their side.

    Raises:
        InputError: The package does not name its model and the user did not either, or a file has another signature.
    """
    origin = manifest.model.get("origin", "")
    if not model_files.model and origin not in zoo.NAMES:
        raise InputError(
            f"the package does not contain the model that it was built from, {origin or 'which it does not name'}",
            hint=f"pass the float model: --model {origin or 'FILE.onnx'}, or `model` in the file of --evaluate",
        )
    sources = {REFERENCE: _load(model_files.model or f"{zoo.PREFIX}{origin}", model_files, manifest)}
    built = manifest.model.get("sha256")
    if not model_files.model and sources[REFERENCE].sha256 != built:
        raise InputError(
            f"the package was built from another {origin} than that of this toolchain with --seed {model_files.seed}",
            hint="pass its --seed and --fix, or the model: --model FILE.onnx",
        )
    if model_files.compiled:
        compiled = _load(model_files.compiled, model_files, manifest)
        if compiled.sha256 != built:
            raise InputError(
                f"the package was not built from {model_files.compiled}",
                details=f"its model: {origin}, sha256:{built}\nthe file: sha256:{compiled.sha256}",
                hint="pass the file that `toolchain build` or `deploy` got, with the same --fix",
            )
        if compiled.sha256 == sources[REFERENCE].sha256:
            raise InputError("--compiled is the same model as --model", hint="leave --compiled out")
        sources[COMPILED] = compiled
    return sources


def _load(name: str, model_files: ModelFiles, manifest: Manifest) -> SourceModel:
    shapes = {spec.name: spec.shape for spec in manifest.inputs}
    source = load(name, seed=model_files.seed, fixed=model_files.fixed, array_shapes=shapes)
    pairs = [
        ("inputs", [str(spec) for spec in source.inputs], [str(spec) for spec in manifest.inputs]),
        ("outputs", [*source.output_names], [spec.name for spec in outputs_of_model(manifest)]),
    ]
    for kind, own, packaged in pairs:
        if sorted(own) != sorted(packaged):
            raise InputError(
                f"{name} has other {kind} than the package",
                details=f"{', '.join(own)}\ninstead of {', '.join(packaged)}",
                hint="pass the model that the package was made from",
            )
    return source


def _run_reference(work: _Work, name: str, source: SourceModel) -> Side:
    """Score the outputs of ONNX Runtime."""
    journal = work.journal(source.sha256, reference.NAME)
    scores = journal.read(len(work.samples))
    resumed = len(scores)
    call = reference.open_model(source)
    specs = {spec.name: spec for spec in outputs_of_model(work.scoring.manifest) if not spec.bound}
    for start in range(resumed, len(work.samples), _PIECE):
        interrupts.check()
        work.progress(Step(f"running samples with ONNX Runtime ({name})", start, len(work.samples), "samples"))
        piece = []
        for sample in work.samples[start : start + _PIECE]:
            outputs = call(work.scoring.reader.inputs(sample))
            for key, spec in specs.items():
                if outputs[key].shape != spec.shape:
                    raise InputError(
                        f"the output {key} of {source.origin} has the shape {outputs[key].shape}",
                        details=f"the package has {spec}",
                        hint="pass the model that the package was made from",
                    )
            piece.append(work.scoring.score(outputs, sample, name))
        journal.append(piece)
        scores += piece
    return Side(name, source.origin, source.sha256, tuple(scores), resumed)


def _run_device(work: _Work, release: DeviceRelease, *, installed: bool) -> Side:
    """Score the outputs of the device, in as few processes there as its memory allows."""
    device = release.device
    journal = work.journal(release.digest, device.board.name, device.name, release.threads)
    scores = journal.read(len(work.samples))
    resumed = len(scores)
    rest = work.samples[resumed:]
    with contextlib.nullcontext() if installed else _installed(release, work, rest):
        work.progress(Step("running samples on the device", resumed, len(work.samples), "samples"))
        for scored in work.scoring.run(release, rest):
            journal.append(scored)
            scores += scored
            work.progress(Step("running samples on the device", len(scores), len(work.samples), "samples"))
    return Side(DEVICE, f"{device.board.name} at {device.name}", release.digest, tuple(scores), resumed)


def _installed(
    release: DeviceRelease, work: _Work, rest: Sequence[Sample]
) -> contextlib.AbstractContextManager[object]:
    """Install a package for a block; a release that the device keeps is there."""
    if not (release.bundle and rest):
        return contextlib.nullcontext()
    return installed_temporarily([(release, work.scoring.reader.inputs(rest[0]))], work.progress)
