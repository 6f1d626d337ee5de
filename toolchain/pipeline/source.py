"""Where a bundle comes from: a model is built, or a bundle or a package is opened, unpacked or pulled."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from toolchain import bundle, registry, tensors
from toolchain.bundle import Bundle
from toolchain.compile.request import BuildRequest
from toolchain.device import verification
from toolchain.errors import InputError, VerificationError
from toolchain.models import inputs, zoo
from toolchain.native import cross
from toolchain.pictures import Pictures
from toolchain.pipeline import steps as pipelines
from toolchain.progress import Stages, stage
from toolchain.registry import Access
from toolchain.sounds import Sounds
from toolchain.steps import Steps
from toolchain.tensors import Tensors, TensorSpec

if TYPE_CHECKING:
    from toolchain.models.request import Model
    from toolchain.models.source import SourceModel
    from toolchain.pipeline.expected import Expected, ReferenceModel

# TVM and ONNX Runtime take seconds to import, and a deploy of a package does not need them: modules that do are
# imported where they are used.


@dataclass(frozen=True)
class Loaded:
    """A model as it was read, and what it is run with."""

    source: SourceModel  # the model
    arrays: Tensors  # its inputs by name
    pipeline: Pictures | Sounds | None = None  # its steps for pictures or sounds, those before it checked
    steps: Steps | None = None  # those that were written
    raw: NDArray[np.uint8] | None = None  # RGB pixels, or a file's bytes, that a device checks them with
    variant: str = ""  # the name of its shapes; empty if there are no others
    others: tuple[Loaded, ...] = ()  # the same model with other shapes

    @property
    def classes(self) -> int | None:
        """Elements of the first output; None if that is unknown before the model is compiled."""
        from toolchain.models import source as model  # noqa: PLC0415

        return model.classes(self.source)


@dataclass(frozen=True)
class BundleSource:
    """What a user wants to deploy, and how a bundle is made of it."""

    request: BuildRequest  # what is built, or the path or address of what was built before
    stages: Stages = field(default_factory=Stages)  # the time of each stage so far
    access: Access = field(default_factory=Access)  # how a registry is reached
    samples: int = 1  # for how many inputs the reference computes outputs
    unchecked: bool = False  # whether a package without its reference is accepted
    # a bundle or a package whose reference is taken, if this host computes the same within its limits
    reference: Path | None = None

    @property
    def is_built(self) -> bool:
        """Whether it is a bundle or a package, and not a model."""
        return is_built(self.request.model.source)

    @property
    def own_inputs(self) -> inputs.Source | None:
        """What a release is measured with, if not the inputs of the bundle's reference."""
        source = self.request.model.given
        return source if self.is_built and source.options else None

    def load(self) -> Loaded:
        """Read the model, and make its inputs.

        Raises:
            InputError: There is no such model, or the inputs do not fit it, or into memory.
        """
        requested = self.request.model
        if not requested.variants:
            return self._load(requested)
        from toolchain.models import variants  # noqa: PLC0415

        _refuse_with_variants(self.request)
        loaded = []
        for variant in requested.variants:
            try:
                loaded.append(replace(self._load(requested.of_variant(variant)), variant=variant.name))
            except InputError as fault:
                raise InputError(
                    f"variant {variant.name}: {fault.message}", details=fault.details, hint=fault.hint
                ) from fault
        variants.check_distinct({each.variant: each.source.inputs for each in loaded})
        return replace(loaded[0], others=tuple(loaded[1:]))

    def _load(self, requested: Model) -> Loaded:
        from toolchain.models import source as model  # noqa: PLC0415

        source = model.load_request(requested)
        for line in source.guessed:
            self.request.progress(line)
        model.check_memory(source)
        given = requested.given
        steps = pipelines.steps_of(requested)
        if steps is None:
            return Loaded(source, inputs.make(given, source.step_inputs, is_sequence=bool(source.states)))
        specs, is_sequence = source.step_inputs, bool(source.states)
        checked = pipelines.resolve(steps, source.inputs, states=source.states)
        if not isinstance(checked, Pictures | Sounds):  # of tokens, which need the outputs of the imported model
            return Loaded(source, inputs.make(given, specs, is_sequence=is_sequence), steps=steps)
        convert = pipelines.converter(checked, specs, self.request.progress, is_sequence=is_sequence)
        if given.sound if isinstance(checked, Pictures) else given.image:  # which the converter refuses
            inputs.make(replace(given, convert=convert), specs)
        raw = pipelines.reference_raw(given, checked, is_sequence=is_sequence)
        made = {spec.name: convert(raw) for spec in specs} if convert and not given.npz else None
        return Loaded(source, made or inputs.make(given, specs, is_sequence=is_sequence), checked, steps, raw)

    def check_possible(self) -> None:
        """Check that the board's compiler knows its target, and that the requested records are there.

        Raises:
            InputError: It does not, or they are not.
        """
        from toolchain.compile import applicable_records  # noqa: PLC0415

        _ = self.request.backend.target
        applicable_records.user_records(self.request)

    def build(self, folder: Path | None = None, loaded: Loaded | None = None) -> Bundle:
        """Import the model, compute its reference and compile it.

        The bundle goes into `folder`, or into build/MODEL-BOARD; `loaded` is the result of an earlier `load`.
        """
        from toolchain.compile import applicable_records, compiler, prepare  # noqa: PLC0415
        from toolchain.models import importer  # noqa: PLC0415

        request, progress = self.request, self.request.progress
        if folder:
            bundle.check_target(folder)
        user_records = applicable_records.user_records(request)
        given = self._given_reference()
        cross.choose(request.board, request.toolchain).describe()  # a missing linker is reported before a long build
        with self.stages.timed("import"):
            progress(stage(f"importing {request.model.source}"))
            loaded = loaded or self.load()
            target = folder or Path("build") / f"{loaded.source.name}-{request.board.name}"
            bundle.check_target(target)
            request = _with_steps(request, loaded, loaded.source)
            every = (loaded, *loaded.others)
            prepared = [prepare.quantize_if_needed(each.source, request) for each in every]
            imported = [importer.import_model(each.source) for each in prepared]
            request = _with_steps(request, loaded, prepared[0].source, imported[0].outputs)
        networks = []
        with self.stages.timed("reference"):
            for each, model, own in zip(every, imported, prepared, strict=True):
                reference, source = self._reference(own.source, each.arrays, each.variant)
                picture, sound = (each.raw if isinstance(each.pipeline, kind) else None for kind in (Pictures, Sounds))
                reference = replace(reference, picture=picture, sound=sound)
                reference = replace(_agreeing(given, reference, each.variant), int8=own.quantized)
                networks.append(compiler.Network(replace(model, source=source), reference, each.variant))
        with self.stages.timed("compile"):
            progress(stage(f"compiling for {request.board.name}"))
            records = applicable_records.RecordSources(user_records, applicable_records.shipped_for(request))
            return compiler.build_variants(networks, request, target, records=records)

    def _given_reference(self) -> bundle.Reference | None:
        if self.reference is None:
            return None
        with bundle.at_hand(self.reference) as opened:
            if opened.reference is None:
                raise InputError(f"{self.reference} has no reference", hint="name a bundle that was built with one")
            return bundle.Reference.read(opened.reference)

    def _reference(
        self, source: SourceModel, arrays: Tensors, variant: str = ""
    ) -> tuple[bundle.Reference, SourceModel]:
        """Return the reference's inputs and outputs, and the model, perhaps with inputs of another range."""
        from toolchain.compile import prepare  # noqa: PLC0415
        from toolchain.models import reference  # noqa: PLC0415
        from toolchain.models.simplify import rewrites  # noqa: PLC0415
        from toolchain.pipeline.expected import ReferenceModel  # noqa: PLC0415

        unoptimized = prepare.is_compared_unoptimized(source, self.request.backend)
        name = reference.name(unoptimized=unoptimized)
        self.request.progress(stage(f"running {f'variant {variant}' if variant else 'it'} with {name}"))
        compared = reference.with_plain_lstm(source)
        target = self.request.board.target
        reference_model = ReferenceModel(
            compared, unoptimized, target.float16, bfloat16=target.bfloat16, weights=target.weights
        )
        try:
            expected = reference_model.run(arrays)
        except InputError as fault:
            reference_model, arrays, expected = self._with_other_inputs(reference_model, fault)
        if compared is not source:
            name = f"{name}, its LSTM in floats"
            own = replace(reference_model, source=source).outputs(arrays)
            difference = tensors.compare(own, expected.outputs).max_rel
            self.request.progress(
                f"compared with {name}: its {rewrites.QUANTIZED_LSTM} rounds data and state to 8 bits at each step, "
                f"and differs by {difference:.1e} from the same weights in floats"
            )
        if expected.amplified:
            limits = ", ".join(f"{output} {limit.value:.0e}" for output, limit in expected.amplified.items())
            self.request.progress(f"these inputs amplify rounding, in the reference too: the limit of {limits}")
        random_samples = None
        if self.samples > 1:
            random_samples = reference_model.run_random(
                self.request.model.given.seed, self.samples, self.request.progress
            )
        return bundle.Reference(
            name, arrays, expected.outputs, expected.tolerance, random_samples, expected.rankings
        ), replace(source, inputs=reference_model.source.inputs)

    def _with_other_inputs(
        self, reference_model: ReferenceModel, fault: InputError
    ) -> tuple[ReferenceModel, Tensors, Expected]:
        """Use integers of 0 and 1 after the reference refused those of the usual range.

        Raises:
            InputError: It refuses these too, the inputs are the user's own, or none of them are integers.
        """
        from toolchain.models import draws  # noqa: PLC0415

        inputs_source, source = self.request.model.given, reference_model.source
        integers = [spec.name for spec in source.inputs if draws.is_integer(spec)]
        if inputs_source.options or not integers:
            raise fault
        source = replace(source, inputs=draws.binary(source.inputs))
        reference_model, arrays = (
            replace(reference_model, source=source),
            inputs.make(inputs_source, source.step_inputs, is_sequence=bool(source.states)),
        )
        try:
            expected = reference_model.run(arrays)
        except InputError as second:
            raise InputError(
                second.message,
                details=second.details,
                hint=f"give values that the model accepts, for {', '.join(integers)} above all: --input FILE.npz",
            ) from fault
        self.request.progress(
            f"the reference refuses random numbers from 0 to 9: 0 and 1 are used for {', '.join(integers)}"
        )
        return reference_model, arrays, expected

    def has_records(self) -> bool:
        """Whether there are tuning records for the board."""
        from toolchain.compile import applicable_records  # noqa: PLC0415

        return applicable_records.has_records(self.request)

    def obtain(self, folder: Path, checked: Bundle | Loaded | None = None) -> Bundle:
        """Open a bundle, unpack or pull a package, or build a model into `folder`.

        `checked` is what the checks before the work have opened or read.

        Raises:
            InputError: A bundle has fewer samples than are to be compared.
        """
        if isinstance(checked, Bundle):
            return checked
        if not self.is_built:
            return self.build(folder, checked)
        source = self.request.model.source
        if registry.is_address(source):
            with self.stages.timed("pull"):
                opened = registry.pull(registry.parse(source), folder, self.access, self.request.progress)
        else:
            opened = bundle.open_bundle(Path(source), folder)
        verification.random_reference(opened, self.samples)
        return opened


def _refuse_with_variants(request: BuildRequest) -> None:
    """Refuse what a bundle with variants cannot have.

    Raises:
        InputError: The board, or an option, is not for variants.
    """
    model, board = request.model, request.board
    unsupported = {
        f"board {board.name}, which has an accelerator,": board.backend != "cpu",
        "--state": bool(model.states) or model.detection == "use",
        "--pre and --post": pipelines.steps_of(model) is not None,
        "--input": bool(model.given.npz),
    }
    if model.range:
        # The network of one row is compared with the reference of the least size.
        is_unknown = bool(board.target.reduced_precision) and model.range.least > 1
        unsupported |= {f"a reduced precision, and {model.range.name} above 1,": is_unknown}
    for what, is_given in unsupported.items():
        if is_given:
            raise InputError(
                f"{what} cannot be combined with several {'sizes' if model.range else 'variants'}",
                details=", ".join(variant.name for variant in model.variants),
                hint="build a release for each set of shapes; `deploy --slot NAME` keeps several on a device",
            )


def _agreeing(given: bundle.Reference | None, own: bundle.Reference, variant: str) -> bundle.Reference:
    """Return the given reference of a variant if this host's own agrees with it; its own if none is given.

    Raises:
        VerificationError: They do not agree.
    """
    if given is None:
        return own
    chosen = given.of_variant(variant)
    faults = chosen.faults_beside(own)
    if faults:
        raise VerificationError(
            "the given reference is not what this host computes",
            details="\n".join(faults),
            hint="give the model, the options and the versions that it was built with, or leave --reference out",
        )
    return chosen


def _with_steps(
    request: BuildRequest, loaded: Loaded, source: SourceModel, outputs: tuple[TensorSpec, ...] | None = None
) -> BuildRequest:
    """Return a request whose images and sounds go through the steps; with outputs, all steps are checked."""
    if loaded.steps is None:
        return request
    if outputs is not None:
        resolved = pipelines.resolve(loaded.steps, source.inputs, outputs, source.states)
        return replace(request, pipeline=resolved)
    convert = pipelines.converter(loaded.pipeline, source.step_inputs, is_sequence=bool(source.states))
    given = replace(request.model.given, convert=convert)
    return replace(request, model=replace(request.model, given=given))


def is_built(source: str) -> bool:
    """Whether a source is a bundle or a package, also of a registry, and not a model."""
    if source.startswith(zoo.PREFIX):
        return False
    path = Path(source)
    is_package = (path / bundle.MANIFEST).is_file() or bundle.is_archive(path)
    return registry.is_address(source) or is_package
