"""Where a bundle comes from: a model is built, or a bundle or a package is opened, unpacked or pulled."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from toolchain import bundle, registry, tensors
from toolchain.bundle import Bundle
from toolchain.compile.request import BuildRequest
from toolchain.device import fidelity
from toolchain.device.stages import Stages
from toolchain.errors import InputError
from toolchain.models import inputs, names
from toolchain.native import cross
from toolchain.progress import stage
from toolchain.registry import Access
from toolchain.tensors import Tensors

if TYPE_CHECKING:
    from toolchain.models.source import SourceModel
    from toolchain.pipeline.expected import Expected, Expecting

# TVM and ONNX Runtime take seconds to import, and a deploy of a package does without them: what needs them is imported
# where it is used.


@dataclass(frozen=True)
class Loaded:
    """A model as it was read, and what it is run with.

    Attributes:
        source: The model.
        fed: Its inputs by name.
    """

    source: SourceModel
    fed: Tensors

    @property
    def classes(self) -> int | None:
        """Elements of the first output; None if that is not known before the model was compiled."""
        from toolchain.models import source as model  # noqa: PLC0415

        return model.classes(self.source)


@dataclass(frozen=True)
class BundleSource:
    """What a user names to be deployed, and how a bundle is made of it.

    Attributes:
        request: What is built, or the path or address of what was built before.
        stages: The time of each stage so far.
        access: How a registry is reached, where the package is in one.
        samples: For how many inputs the reference computes outputs.
        unchecked: Whether a package without its reference is taken.
    """

    request: BuildRequest
    stages: Stages = field(default_factory=Stages)
    access: Access = field(default_factory=Access)
    samples: int = 1
    unchecked: bool = False

    @property
    def is_built(self) -> bool:
        """Whether it is a bundle or a package, and not a model."""
        return is_built(self.request.model.source)

    @property
    def own_inputs(self) -> inputs.Source | None:
        """What a release is measured with, where it is not the inputs of the bundle's reference."""
        given = self.request.model.given
        return given if self.is_built and (given.npz or given.image) else None

    def load(self) -> Loaded:
        """Read the model, and make what it is to be run with.

        Raises:
            InputError: There is no such model, or what it is to be run with does not fit it, or into memory.
        """
        from toolchain.models import source as model  # noqa: PLC0415

        source = model.load_request(self.request.model)
        for line in source.guessed:
            self.request.tell(line)
        model.check_memory(source)
        return Loaded(source, inputs.make(self.request.model.given, source.inputs))

    def check_possible(self) -> None:
        """See that the board's compiler knows its target, and that the records that were asked for are there.

        Raises:
            InputError: It does not, or they are not.
        """
        from toolchain.compile import known  # noqa: PLC0415

        _ = self.request.backend.target
        known.own_records(self.request)

    def build(self, folder: Path | None = None, read: Loaded | None = None) -> Bundle:
        """Import the model, compute its reference and compile it.

        Args:
            folder: Where the bundle goes; build/MODEL-BOARD by default.
            read: What `load` returned, if it was called before.
        """
        from toolchain.compile import compiler, known, prepare  # noqa: PLC0415
        from toolchain.models import importer  # noqa: PLC0415

        request, tell = self.request, self.request.tell
        if folder:
            bundle.check_target(folder)
        own_records = known.own_records(request)
        cross.choose(request.board, request.toolchain).describe()  # the link is possible, before a minute goes into it
        with self.stages.timed("import"):
            tell(stage(f"importing {request.model.source}"))
            read = read or self.load()
            target = folder or Path("build") / f"{read.source.name}-{request.board.name}"
            bundle.check_target(target)
            suited = prepare.suited(read.source, request)
            loaded = suited.source
            imported = importer.import_model(loaded)
        with self.stages.timed("reference"):
            reference, loaded = self._reference(loaded, read.fed)
            expected = replace(reference, int8=suited.quantized)
            imported = replace(imported, source=loaded)
        with self.stages.timed("compile"):
            tell(stage(f"compiling for {request.board.name}"))
            records = known.Known(own_records, known.shipped_for(request))
            return compiler.build(imported, request, target, reference=expected, known=records)

    def _reference(self, loaded: SourceModel, fed: Tensors) -> tuple[bundle.Reference, SourceModel]:
        """Run the model with the reference.

        Returns:
            Inputs and outputs, and the model; its inputs are drawn from other values where it refused the first ones.
        """
        from toolchain.compile import prepare  # noqa: PLC0415
        from toolchain.models import reference  # noqa: PLC0415
        from toolchain.models.simplify import dynamic_lstm  # noqa: PLC0415
        from toolchain.pipeline.expected import Expecting  # noqa: PLC0415

        exact = prepare.is_computed_to_the_letter(loaded, self.request.backend)
        name = reference.name(unoptimized=exact)
        self.request.tell(stage(f"running it with {name}"))
        compared = reference.with_plain_lstm(loaded)
        expecting = Expecting(compared, unoptimized=exact, float16=self.request.board.target.float16)
        try:
            found = expecting.of(fed)
        except InputError as fault:
            expecting, fed, found = self._with_other_inputs(expecting, fault)
        if compared is not loaded:
            name = f"{name}, its LSTM in floats"
            own = tensors.compare(reference.run(loaded, fed), found.outputs).max_rel
            self.request.tell(
                f"compared with {name}: its {dynamic_lstm.OPERATOR} rounds data and state to 8 bits at each step, "
                f"and differs by {own:.1e} from the same weights in floats"
            )
        if found.amplified:
            named = ", ".join(f"{output} {limit.value:.0e}" for output, limit in found.amplified.items())
            self.request.tell(f"these inputs amplify rounding, in the reference too: the limit of {named}")
        drawn = None
        if self.samples > 1:
            drawn = expecting.of_random(self.request.model.given.seed, self.samples, self.request.tell)
        return bundle.Reference(name, fed, found.outputs, found.tolerance, drawn, found.rankings), replace(
            loaded, inputs=expecting.source.inputs
        )

    def _with_other_inputs(self, expecting: Expecting, fault: InputError) -> tuple[Expecting, Tensors, Expected]:
        """Draw integers from 0 and 1 after the reference refused those of the usual range.

        Raises:
            InputError: It refuses these too, the inputs are the user's own, or none of them are integers.
        """
        from toolchain.models import draws  # noqa: PLC0415

        given, source = self.request.model.given, expecting.source
        integers = [spec.name for spec in source.inputs if draws.is_integer(spec)]
        if given.npz or given.image or not integers:
            raise fault
        source = replace(source, inputs=draws.binary(source.inputs))
        expecting, fed = replace(expecting, source=source), inputs.random(source.inputs, given.seed)
        try:
            found = expecting.of(fed)
        except InputError as second:
            raise InputError(
                second.message,
                details=second.details,
                hint=f"give values that the model accepts, for {', '.join(integers)} above all: --input FILE.npz",
            ) from fault
        self.request.tell(
            f"the reference refuses random numbers from 0 to 9: 0 and 1 are used for {', '.join(integers)}"
        )
        return expecting, fed, found

    def has_records(self) -> bool:
        """Whether there are any tuning records for the board where they are to be taken from."""
        from toolchain.compile import known  # noqa: PLC0415

        return known.has_records(self.request)

    def obtain(self, folder: Path, checked: Bundle | Loaded | None = None) -> Bundle:
        """Open a bundle, unpack or pull a package, or build a model into `folder`.

        Args:
            folder: Where a package is unpacked or pulled to, or a model built.
            checked: What the checks before the work have opened or read of it.

        Raises:
            InputError: What was built before carries fewer samples than are to be compared.
        """
        if isinstance(checked, Bundle):
            return checked
        if not self.is_built:
            return self.build(folder, checked)
        made = self._opened(self.request.model.source, folder)
        fidelity.carried(made, self.samples)
        return made

    def _opened(self, source: str, folder: Path) -> Bundle:
        if not registry.is_address(source):
            return bundle.open_bundle(Path(source), folder)
        with self.stages.timed("pull"):
            return registry.pull(registry.parse(source), folder, self.access, self.request.tell)


def is_built(source: str) -> bool:
    """Tell whether a word names a bundle or a package, a registry's among them, and no model."""
    if source.startswith(names.PREFIX):
        return False
    path = Path(source)
    packed = (path / bundle.MANIFEST).is_file() or bundle.is_archive(path)
    return registry.is_address(source) or packed
