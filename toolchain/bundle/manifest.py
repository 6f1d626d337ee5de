"""The manifest of a bundle: for which board it was built, from what, and with which files."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields, replace
from datetime import date
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import AfterValidator, Field, TypeAdapter, ValidationError

from toolchain import files, pictures, sounds, states, texts, variants
from toolchain.bundle import compact, dynamic
from toolchain.errors import InputError, VerificationError, did_you_mean
from toolchain.pictures import Pictures
from toolchain.sounds import Sounds
from toolchain.states import StatePair
from toolchain.tensors import DTYPES, Tensors, TensorSpec
from toolchain.texts import Texts
from toolchain.validation import FEW_KEYS, FIRST_FAULT, words
from toolchain.variants import MOST as MOST_VARIANTS
from toolchain.variants import NAME as VARIANT_NAME
from toolchain.variants import Dynamic

MANIFEST = "manifest.json"
LIBRARY = "model.so"
GRAPH = "graph.json"
GRAPH_TEXT = "graph.txt"
PARAMS = "params.safetensors"
REFERENCE = "reference.safetensors"  # inputs and the outputs that ONNX Runtime gives for them
RECORDS = "records.jsonl"  # the tuning records that were applied
BILL = "bill.cdx.json"  # a bill of materials in CycloneDX
PROVENANCE = "provenance.intoto.json"  # how it was made, as an in-toto statement
STATEMENT = "release.json"  # the signed statement: see the room `signing`
SIGNATURES = "release.json.sig"  # of OpenSSH, one after the other
# bytes that a manifest may have, of a bundle or of OCI: that of a network with a thousand params has a tenth of it
LARGEST_MANIFEST = 1 << 20
LARGEST_GRAPH = 256 << 20  # bytes of a graph that are read, as text or as JSON
LARGEST_STATEMENT = 1 << 20  # bytes that a statement, or signatures, may have: as on a device

# what travels to a device, and no manifest may list anything else: least of all itself
FILES = (LIBRARY, GRAPH, GRAPH_TEXT, PARAMS)

# 1: the manifest was no layer of the package, so that no other client than ours pulled a whole bundle. 2: it did not
# name the reference, so that anybody could put another one beside a bundle. 4: with several variants; without, 3.
_SCHEMA, _VARIANTS_SCHEMA = 3, 4
_LARGEST_FILE = (8 << 30) - 1  # of what a plain tar file can say the size
_LARGEST_TENSOR = 1 << 32
_MAX_AXES = 32
_LARGEST_COUNT = 2**53 - 1  # exact in every reader of JSON
# bytes that a tensor without a name takes in the header of a safetensors file
_SMALLEST_ENTRY = len('"":{"dtype":"I8","shape":[],"data_offsets":[0,0]}')
_MAX_FAULTS = 10
_MAX_SPEC_TEXT = 200


def _printable(name: str) -> str:
    if not name.isprintable():
        raise ValueError("should be one line of printable characters")
    return name


def _day(text: str) -> str:
    if text and date.fromisoformat(text).isoformat() != text:
        raise ValueError("should be a date, such as 2031-12-31")
    return text


# A name has a line of its own in a device's list of releases, and appears in tables and file names.
_Name = Annotated[str, Field(min_length=1, max_length=255), AfterValidator(_printable)]
_Word = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.+-]+$")]
_Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
_Texts = Annotated[Mapping[str, str], FEW_KEYS]
_Count = Annotated[int, Field(ge=0, le=_LARGEST_COUNT)]
_Positive = Annotated[int, Field(ge=1, le=_LARGEST_COUNT)]


@dataclass(frozen=True)
class FileRecord:
    """SHA-256 (64 hexadecimal digits) and size in bytes of one file."""

    sha256: _Digest
    size: Annotated[int, Field(ge=0, le=_LARGEST_FILE)]


@dataclass(frozen=True)
class Tuned:
    """How many kernels of a bundle have tuning records."""

    # SHA-256 of the records that were applied, which are in the bundle's folder; empty if there are none
    sha256: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")] = ""
    tasks: _Count = 0  # how many kernels the model has; 0 where none is tuned
    tuned: _Count = 0  # for how many of them a record was applied
    shipped: _Count = 0  # for how many more a record that comes with the toolchain was
    # what a model computed the applied records' times for, and by what; empty where they were measured
    modelled: str = ""


@dataclass(frozen=True)
class Modelled:
    """What a model of an accelerator computes for its part of one run. Nothing of it was measured."""

    model: str
    clock_mhz: Annotated[float, Field(gt=0)]
    kernels: _Positive  # calls of its kernels
    cycles: _Positive  # clock cycles of all of them
    macs: _Count  # multiply-adds that count
    macs_per_cycle: _Positive  # the most that the accelerator does in a cycle
    calibration: str = ""  # what the model was calibrated on; empty where nothing was

    @property
    def milliseconds(self) -> float:
        """Time of the accelerator's part."""
        return self.cycles / self.clock_mhz / 1e3

    @property
    def utilisation(self) -> float:
        """Share of the multiply-adds that it could have done."""
        return self.macs / (self.cycles * self.macs_per_cycle)

    @property
    def gops(self) -> float:
        """Billions of operations a second; a multiply-add counts as two."""
        return 2 * self.macs / self.milliseconds / 1e6


@dataclass(frozen=True)
class HalfOutput:
    """How far an output in half precision is from the reference."""

    name: str
    # the largest difference, relative to the largest magnitude of the reference; None if it is not finite
    max_rel: Annotated[float, Field(ge=0)] | None
    limit: Annotated[float, Field(ge=0)]  # what a deploy accepts
    ok: bool  # whether it is within that

    def __str__(self) -> str:
        off = "not finite" if self.max_rel is None else f"{self.max_rel:.1e} of the largest value off"
        return f"{self.name} {off} (limit {self.limit_text})"

    @property
    def limit_text(self) -> str:
        """The limit with as many digits as it needs."""
        return f"{self.limit:.1e}".replace(".0e", "e")


@dataclass(frozen=True)
class InHalf:
    """How far a network in a reduced precision is from its reference, as the build machine computed; no device did."""

    reference: str  # what computed the reference
    inputs: str  # what both were run with, for people
    outputs: Annotated[tuple[HalfOutput, ...], FIRST_FAULT]  # what was found of each output; none if nothing is known
    obstacle: str = ""  # why nothing is; empty if it is
    format: Literal["float16", "bfloat16", "int8", "int4"] = "float16"  # what is multiplied, or what weights are in

    @property
    def precision(self) -> str:
        """What people call it."""
        return {"float16": "half precision", "bfloat16": "bfloat16"}.get(self.format, f"{self.format} weights")

    @property
    def phrase(self) -> str:
        """The same in a sentence about results."""
        return f"{'in' if self.option != '--weights' else 'with'} {self.precision}"

    @property
    def option(self) -> str:
        """The option that selects it."""
        return "--weights" if self.format in {"int8", "int4"} else f"--{self.format}"

    @property
    def title(self) -> str:
        """The same as a heading."""
        return f"{self.precision[0].upper()}{self.precision[1:]}"

    @property
    def ok(self) -> bool:
        """Whether no output is known to exceed its limit."""
        return all(output.ok for output in self.outputs)

    def lines(self) -> list[str]:
        if self.obstacle:
            return [f"the error of {self.precision} is not known before a deploy: {self.obstacle}"]
        by = f"from {self.reference} with {self.inputs}, emulated"
        heads = [f"{self.phrase}," if output.ok else f"WRONG {self.phrase}:" for output in self.outputs]
        return [f"{head} {output} {by}" for head, output in zip(heads, self.outputs, strict=True)]


@dataclass(frozen=True)
class InInt8:
    """How near a network that was made int8 for its board is to the user's own, as the build machine computed."""

    against: str  # the network that its results were compared with
    method: str  # how its activations got their scales: `file` for the ranges of the user's own file
    samples: _Positive  # how many inputs that is based on
    random: _Count  # how many of them are random numbers
    snr_db: float | None = None  # signal over noise of the results; None where they are equal
    # share of inputs for which both put the same class first; None where the results are no classes
    top1_agreement: Annotated[float, Field(ge=0, le=1)] | None = None

    def lines(self) -> list[str]:
        near = "the same as" if self.snr_db is None else f"{self.snr_db:.1f} dB signal over noise against"
        top = "" if self.top1_agreement is None else f", the same class first for {self.top1_agreement:.1%}"
        kind = {0: "", self.samples: "random "}.get(self.random, "partly random ")
        return [f"in int8, {near} {self.against}{top}, with {self.samples} {kind}inputs"]


_Share = Annotated[float, Field(ge=0, le=1)]


@dataclass(frozen=True)
class Sparse:
    """The zeros in the weights of a network that has kernels which leave some of them out."""

    kernels: _Positive  # how many of its kernels do
    zeros: _Share  # of the weights of all convolutions and fully connected layers
    blocks: Annotated[Mapping[str, _Share], FEW_KEYS]  # share of blocks that are zero, by their shape, such as `8x1`

    def __str__(self) -> str:
        blocks = ", ".join(f"{share:.0%} of {block}" for block, share in self.blocks.items())
        return f"{self.kernels} kernel(s) leave out zeros: {self.zeros:.0%} of the weights; of the blocks {blocks}"


@dataclass(frozen=True)
class Variant:
    """One of the sets of shapes that a network was compiled for; the fields are those of `Manifest`."""

    name: Annotated[str, Field(pattern=rf"^{VARIANT_NAME.pattern}$")]
    entry: str
    inputs: Annotated[tuple[TensorSpec, ...], FIRST_FAULT]
    outputs: Annotated[tuple[TensorSpec, ...], FIRST_FAULT]
    params_order: Annotated[tuple[str, ...], FIRST_FAULT]
    activations: _Count | None = None

    def __str__(self) -> str:
        return f"{self.name} ({', '.join(map(str, self.inputs))})"


@dataclass(frozen=True)
class Manifest:
    """Everything that someone has to know about a bundle to run it, and to make it again.

    With several variants, its own entry, inputs, outputs, params and activations are those of the first one.
    """

    schema: Literal[3, 4]
    name: _Name
    board: _Word  # board type it was built for
    machine: _Word  # what `uname -m` must say on the device
    triple: _Word  # GNU triple of the library
    target: Mapping[str, Any]
    # lowest glibc version that the library loads on; empty if it needs none
    glibc: Annotated[str, Field(pattern=r"^([0-9]{1,4}(\.[0-9]{1,4})*)?$")]
    cpu_features: Annotated[tuple[_Word, ...], FIRST_FAULT]  # flags that the device's /proc/cpuinfo must show
    entry: str  # function of the library that runs the model: inputs first, then the params in `params_order`
    library: Literal["model.so"]  # file name of the Relax VM library
    params: Literal["params.safetensors"]  # file name of the params, in safetensors format
    params_order: Annotated[tuple[str, ...], FIRST_FAULT]  # names of the params in the order of the entry's arguments
    inputs: Annotated[tuple[TensorSpec, ...], FIRST_FAULT]  # input signature in the order of the entry's arguments
    outputs: Annotated[tuple[TensorSpec, ...], FIRST_FAULT]
    # versions of `toolchain`, `tvm` and `tvm_ffi`, and of what prepared the model: `onnx`, `onnxruntime`
    versions: _Texts
    compiler: _Texts  # what compiled and linked the library
    model: _Texts  # origin and digest of the model file
    command: str  # the command that makes this bundle again
    files: Annotated[Mapping[str, FileRecord], FEW_KEYS]  # digest and size of each of the bundle's files
    reference: FileRecord | None = None  # digest and size of the reference; None if it was built without one
    records: Tuned | None = None  # the tuning records that were applied
    modelled: Modelled | None = None  # the result of a model of the board's accelerator, if there is one
    # how far half precision or bfloat16 is from the reference; None where the board computes in single precision
    half: InHalf | None = None
    # how near a network that was made int8 for the board is to the user's own; None where it was not
    int8: InInt8 | None = None
    activations: _Count | None = None  # bytes that activations and outputs take; None where they are not planned
    sparse: Sparse | None = None  # the zeros in its weights; None where no kernel leaves any out
    # outputs that stay on the device and are inputs of the next step; none where each run is on its own
    states: Annotated[tuple[StatePair, ...], FIRST_FAULT] = ()
    pictures: Pictures | None = None  # how pictures become its input, and its output objects; None for tensors only
    sounds: Sounds | None = None  # the same for sounds
    texts: Texts | None = None  # how numbers of tokens become a text
    # the sets of shapes that it was compiled for, if there are several: functions of one library, with common params
    variants: Annotated[tuple[Variant, ...], FIRST_FAULT] = ()
    dynamic: Dynamic | None = None  # the dimension of any size, of which the variants are some; None for fixed shapes
    # the last day for which its publisher promises updates, such as 2031-12-31; empty for none. Nothing enforces it
    supported_until: Annotated[str, AfterValidator(_day)] = ""

    def select(self, arrays: Tensors, where: str) -> str:
        """Return the name of the variant whose inputs have the shapes of arrays; empty if there are no variants.

        Raises:
            InputError: There is none.
        """
        if self.dynamic:
            return self.dynamic.select(self.variants[0].inputs, self.variants[-1].inputs, arrays, where)
        return variants.select({variant.name: variant.inputs for variant in self.variants}, arrays, where)

    def of_shapes(self, name: str) -> Manifest:
        """Return the manifest of a variant, as `of_variant`, which may have any size of the dynamic dimension."""
        size = self.dynamic.size(name) if self.dynamic and name not in self.variant_names else None
        if self.dynamic is None or size is None:
            return self.of_variant(name)
        least, greatest = self.variants[0], self.variants[-1]
        inputs, outputs = (
            tuple(self.dynamic.resize(low, high, size) for low, high in zip(*pair, strict=True))
            for pair in ((least.inputs, greatest.inputs), (least.outputs, greatest.outputs))
        )
        return replace(self.of_variant(greatest.name), inputs=inputs, outputs=outputs)

    def of_variant(self, name: str) -> Manifest:
        """Return the manifest as that of one of its variants alone; with an empty name, as it is.

        Raises:
            InputError: There is no such variant.
        """
        if not name:
            return self
        variant = next((variant for variant in self.variants if variant.name == name), None)
        if variant is None:
            known = [variant.name for variant in self.variants]
            raise InputError(
                f"{self.name} has no variant {name!r}",
                details="\n".join(map(str, self.variants)) or "it was built for one set of shapes",
                hint=did_you_mean(name, known) or "name one of these",
            )
        own = {field.name: getattr(variant, field.name) for field in fields(Variant) if field.name != "name"}
        return replace(self, schema=3, variants=(), dynamic=None, **own)

    @property
    def variant_names(self) -> tuple[str, ...]:
        """The names of the variants; an empty one if there are none."""
        return tuple(variant.name for variant in self.variants) or ("",)

    @property
    def pipeline(self) -> Pictures | Sounds | None:
        """The steps of the model; None for tensors only."""
        return self.pictures or self.sounds

    @property
    def step_inputs(self) -> tuple[TensorSpec, ...]:
        """The inputs that are passed to a run: all but the state."""
        return states.of_step(self.inputs, [pair.input for pair in self.states])

    @property
    def step_outputs(self) -> tuple[TensorSpec, ...]:
        """The outputs that a run returns: all but the state."""
        return states.of_step(self.outputs, [pair.output for pair in self.states])

    def steps(self, arrays: Tensors) -> int:
        """Return the steps of a sequence of inputs; 0 for a model without a state."""
        return states.count_steps(arrays) if self.states else 0

    def encoded(self) -> bytes:
        """Return the manifest as the bytes of manifest.json."""
        document = asdict(self)
        for name in (
            "reference",
            "records",
            "modelled",
            "half",
            "int8",
            "sparse",
            "pictures",
            "sounds",
            "texts",
            "dynamic",
        ):
            if document[name] is None:
                del document[name]
        compact.drop_from_steps(document.get("pictures"), document.get("sounds"))
        for name in ("states", "variants", "supported_until"):  # as before there were any
            if not document[name]:
                del document[name]
        for pair in document.get("states", ()):
            if not pair["in_place"]:  # as before there were any that are
                del pair["in_place"]
        if self.records is not None and not self.records.modelled:  # bundles of before there were models are the same
            del document["records"]["modelled"]
        if self.half is not None and self.half.format == "float16":  # as before there were others
            del document["half"]["format"]
        for part in (document, *document.get("variants", ())):
            _drop_unknown(part)
        return files.canonical_json(document)


def _drop_unknown(document: dict[str, Any]) -> None:
    """Remove what a manifest or a variant does not know of its tensors and its memory."""
    for spec in (*document["inputs"], *document["outputs"]):
        for key in ("bound", "draw"):
            if spec[key] is None:
                del spec[key]
    if document["activations"] is None:
        del document["activations"]


_MANIFEST_READER: TypeAdapter[Manifest] = TypeAdapter(Manifest)
_REQUIRED = {field.name for field in fields(Manifest) if field.default is MISSING}


def older_schema(data: bytes) -> int | None:
    """Return the schema version of a manifest that an older toolchain wrote; None for anything else."""
    schema = _schema_of(data)
    return schema if schema is not None and 0 < schema < _SCHEMA else None


def _schema_of(data: bytes) -> int | None:
    """Return the schema version of what looks like a manifest of some version."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return None
    schema = document.get("schema") if isinstance(document, dict) and document.keys() >= _REQUIRED else None
    return schema if isinstance(schema, int) else None


def read_manifest(data: bytes, where: str) -> Manifest:
    """Parse a manifest.

    Raises:
        VerificationError: It is not a manifest of this schema version, written as this toolchain writes it.
    """
    if len(data) > LARGEST_MANIFEST:
        raise VerificationError(
            f"the manifest of {where} has {len(data)} bytes, and at most {LARGEST_MANIFEST} are allowed",
            hint="build or fetch it again",
        )
    if (schema := _schema_of(data)) not in {None, _SCHEMA, _VARIANTS_SCHEMA}:
        newer = schema is not None and schema > _VARIANTS_SCHEMA
        raise VerificationError(
            f"the manifest of {where} has schema version {schema}, but this toolchain reads versions {_SCHEMA} and "
            f"{_VARIANTS_SCHEMA}",
            hint=f"{'use the toolchain that wrote it, or ' if newer else ''}build it again with this toolchain, "
            "and deploy that",
        )
    try:
        json.loads(data, parse_constant=_refuse_constant)
        manifest = _MANIFEST_READER.validate_json(data)
        faults = _faults(manifest, data)
    except ValidationError as fault:
        faults = [words(fault, _MAX_FAULTS)]
    except (ValueError, RecursionError) as fault:
        faults = [str(fault)]
    if faults:
        raise VerificationError(
            f"the manifest of {where} is not valid",
            details="\n".join(faults[:_MAX_FAULTS]),
            hint="build or fetch it again",
        )
    return manifest


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a valid JSON number")


def _faults(manifest: Manifest, data: bytes) -> list[str]:
    """Return the faults that no type excludes: files, impossible tensors, and bytes in another form."""
    faults = _signature_faults(manifest)
    faults += [
        f"files: it lists {name}{', itself' if name == MANIFEST else ''}" for name in manifest.files.keys() - FILES
    ]
    faults += [f"files: it does not list {name}" for name in FILES if name not in manifest.files]
    faults += _amount_faults(manifest) if PARAMS in manifest.files and GRAPH_TEXT in manifest.files else []
    faults += ["outputs: the list is empty"] if not manifest.outputs else []
    faults += ["it has steps for pictures and a state"] if manifest.pictures and manifest.states else []
    if manifest.pictures and not faults:
        faults += pictures.faults(manifest.pictures, manifest.inputs, manifest.outputs)
    if manifest.sounds and not faults:
        faults += sounds.faults(manifest.sounds, manifest.inputs, manifest.outputs, manifest.states)
    if manifest.texts and not faults:
        faults += texts.faults(manifest.texts, manifest.outputs, manifest.states)
    faults += ["it has steps for tokens and others"] if manifest.texts and manifest.pipeline else []
    faults += ["it has steps for pictures and for sounds"] if manifest.pictures and manifest.sounds else []
    faults += ["board: it is a file name, not a board name"] if manifest.board.endswith(".toml") else []
    faults += _variant_faults(manifest) if not faults else []
    if not faults and manifest.encoded() != data:
        faults.append("it does not have the exact form that the toolchain writes")
    return faults


def _signature_faults(manifest: Manifest) -> list[str]:
    """Return what is wrong with the inputs and outputs."""
    specs = (*manifest.inputs, *manifest.outputs)
    faults = [f"{spec!s:.{_MAX_SPEC_TEXT}}" for spec in specs if not _is_possible(spec)]
    faults += _bound_faults(manifest) if not faults else []
    faults += [f"states: {fault}" for fault in states.faults(manifest.inputs, manifest.outputs, manifest.states)]
    if manifest.target.get("kind") != "llvm":
        faults += [f"states: {pair} is in place, as on CPUs alone" for pair in manifest.states if pair.in_place]
    if not faults:
        for side, tensors in {"inputs": manifest.inputs, "outputs": manifest.outputs}.items():
            if sum(spec.bytes for spec in tensors) > _LARGEST_TENSOR:
                faults.append(f"{side}: together they have more than {_LARGEST_TENSOR} bytes")
    return faults


def _variant_faults(manifest: Manifest) -> list[str]:
    """Return what is wrong with the variants; each by itself is checked as a manifest of one set of shapes."""
    variants = manifest.variants
    if (manifest.schema == _VARIANTS_SCHEMA) != bool(variants):
        return ["variants: schema 4 is for a bundle that has some"]
    if not variants:
        return ["dynamic: there are no variants"] if manifest.dynamic else []
    is_many = 1 < len(variants) <= MOST_VARIANTS
    faults = [] if is_many else [f"variants: a bundle has 2 to {MOST_VARIANTS} of them"]
    faults += ["variants: they are for CPUs"] if manifest.target.get("kind") != "llvm" else []
    for field in ("states", "pictures", "sounds", "texts", "modelled", "int8"):
        faults += [f"variants: they cannot be combined with {field}"] if getattr(manifest, field) else []
    first, *others = variants
    own = Variant(
        first.name, manifest.entry, manifest.inputs, manifest.outputs, manifest.params_order, manifest.activations
    )
    faults += ["variants: the first one is not what the manifest itself has"] if own != first else []
    keys = [lambda variant: variant.name, lambda variant: tuple(variant.inputs)]
    keys += [] if manifest.dynamic else [lambda variant: variant.entry]
    faults += dynamic.faults(manifest.dynamic, manifest.variants) if manifest.dynamic else []
    for key in keys:
        faults += ["variants: two are the same"] if len(set(map(key, variants))) < len(variants) else []
    signature = dynamic.signature(first)
    for variant in others:
        faults += [f"variants: {variant.name} has another signature"] if dynamic.signature(variant) != signature else []
        view = manifest.of_variant(variant.name)
        faults += [f"variants: {variant.name}: {fault}" for fault in _signature_faults(view)]
        faults += [f"variants: {variant.name}: {fault}" for fault in _amount_faults(view)]
    return faults


def _bound_faults(manifest: Manifest) -> list[str]:
    """Return what is wrong with the names of tensors, and with those whose size depends on the data."""
    faults = [f"{spec.name}: no input has a bound" for spec in manifest.inputs if spec.bound]
    faults += [f"{spec.name}: an output is not drawn" for spec in manifest.outputs if spec.draw]
    faults += [f"{spec.name}: no {spec.dtype} can be drawn" for spec in manifest.inputs if not spec.can_be_drawn]
    for specs in (manifest.inputs, manifest.outputs):
        faults += ["two tensors have the same name"] if len({spec.name for spec in specs}) < len(specs) else []
    counts = {spec.name for spec in manifest.outputs if (spec.dtype, spec.elements) == ("int64", 1)}
    for spec in manifest.outputs:
        if spec.bound and not 0 <= spec.bound.axis < len(spec.shape):
            faults.append(f"{spec.name}: its bound is for an axis that it does not have")
        if spec.bound and spec.bound.count not in counts - {spec.name}:
            faults.append(f"{spec.name}: no other output with one int64 value counts it")
    return faults


def _amount_faults(manifest: Manifest) -> list[str]:
    """Return the counts that the rest of the manifest disproves: a device allocates memory for each param."""
    params, features = manifest.params_order, manifest.cpu_features
    header = sum(len(name.encode()) + _SMALLEST_ENTRY for name in params)
    wrong = {
        "params_order: it has a name twice": len(set(params)) < len(params),
        f"params_order: it has more names than {PARAMS} has room for": header > manifest.files[PARAMS].size,
        "cpu_features: it has a name twice": len(set(features)) < len(features),
    }
    if tuned := manifest.records:
        wrong["records: more kernels are tuned than there are"] = tuned.tuned + tuned.shipped > tuned.tasks
        wrong[f"records: {GRAPH_TEXT} has no room for so many kernels"] = tuned.tasks > manifest.files[GRAPH_TEXT].size
    if array := manifest.modelled:
        wrong["modelled: it has more kernels than cycles"] = array.kernels > array.cycles
        wrong["modelled: it has more multiply-adds than its cycles allow"] = array.utilisation > 1
        wrong["modelled: its clock is not a finite number"] = not math.isfinite(array.clock_mhz)
    if half := manifest.half:
        wrong["half: it has more outputs than the model"] = len(half.outputs) > len(manifest.outputs)
    if int8 := manifest.int8:
        wrong["int8: more inputs are random than there are"] = int8.random > int8.samples
    return [fault for fault, is_wrong in wrong.items() if is_wrong]


def _is_possible(spec: TensorSpec) -> bool:
    """Whether a device could have such a tensor."""
    # The rank comes first, since many sizes take long to multiply.
    if len(spec.shape) > _MAX_AXES or spec.dtype not in DTYPES:
        return False
    if not all(0 <= size <= _LARGEST_TENSOR for size in spec.shape):
        return False
    return math.prod(spec.shape) * np.dtype(spec.dtype).itemsize <= _LARGEST_TENSOR
