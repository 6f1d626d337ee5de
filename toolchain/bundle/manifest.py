"""What a bundle says of itself: for which board it was built, from what, and with which files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from toolchain import files
from toolchain.errors import VerificationError
from toolchain.tensors import DTYPES, TensorSpec

MANIFEST = "manifest.json"
LIBRARY = "model.so"
GRAPH = "graph.json"
GRAPH_TEXT = "graph.txt"
PARAMS = "params.safetensors"
REFERENCE = "reference.safetensors"  # inputs and the outputs that ONNX Runtime gives for them
RECORDS = "records.jsonl"  # the tuning records that were applied

_SCHEMA = 2  # 1: the manifest was no layer of the package, so that no other client than ours pulled a whole bundle
_Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


@dataclass(frozen=True)
class FileRecord:
    """SHA-256 (64 hexadecimal digits) and size in bytes of one file."""

    sha256: _Digest
    size: Annotated[int, Field(ge=0)]


@dataclass(frozen=True)
class Tuned:
    """What tuning records had to do with a bundle.

    Attributes:
        sha256: SHA-256 of the records that were applied, which are in the bundle's folder; empty if there are none.
        tasks: How many kernels the model has; 0 where none is tuned.
        tuned: For how many of them a record was applied.
        shipped: For how many more a record that comes with the toolchain was.
    """

    sha256: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")] = ""
    tasks: Annotated[int, Field(ge=0)] = 0
    tuned: Annotated[int, Field(ge=0)] = 0
    shipped: Annotated[int, Field(ge=0)] = 0


@dataclass(frozen=True)
class Modelled:
    """What a model of an accelerator says of its part of one run. Nothing of it was measured.

    Attributes:
        model: Name of the model.
        clock_mhz: Clock of the accelerator.
        kernels: Calls of its kernels.
        cycles: Clock cycles of all of them.
        macs: Multiply-adds that count.
        macs_per_cycle: The most that the accelerator does in a cycle.
    """

    model: str
    clock_mhz: Annotated[float, Field(gt=0)]
    kernels: Annotated[int, Field(ge=1)]
    cycles: Annotated[int, Field(ge=1)]
    macs: Annotated[int, Field(ge=0)]
    macs_per_cycle: Annotated[int, Field(ge=1)]

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
class Manifest:
    """Everything that someone has to know about a bundle before running it, and to make it again.

    Attributes:
        schema: Version of this document.
        name: Model name.
        board: Board type it was built for.
        machine: What `uname -m` must say on the device.
        triple: GNU triple of the library.
        target: TVM code-generation target.
        glibc: Lowest glibc version that the library loads on; empty if it needs none.
        cpu_features: Flags that the device's /proc/cpuinfo must show.
        entry: Function of the library that runs the model: inputs first, then the params in `params_order`.
        library: File name of the Relax VM library.
        params: File name of the params, in safetensors format.
        params_order: Names of the params in the order of the entry's arguments.
        inputs: Input signature in the order of the entry's arguments.
        outputs: Output signature.
        versions: Versions of `toolchain`, `tvm` and `tvm_ffi`, and of what prepared the model: `onnx`, `onnxruntime`.
        compiler: What compiled and linked the library.
        model: Origin and digest of the model file.
        command: The command that makes this bundle again.
        files: Digest and size of each of the bundle's files.
        records: The tuning records that were applied; None in a manifest from before there were any.
        modelled: What a model of the board's accelerator says; None where there is none.
    """

    schema: Literal[2]
    name: str
    board: str
    machine: str
    triple: str
    target: Mapping[str, Any]
    glibc: str
    cpu_features: tuple[str, ...]
    entry: str
    library: Literal["model.so"]
    params: Literal["params.safetensors"]
    params_order: tuple[str, ...]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    versions: Mapping[str, str]
    compiler: Mapping[str, str]
    model: Mapping[str, str]
    command: str
    files: Mapping[str, FileRecord]
    records: Tuned | None = None
    modelled: Modelled | None = None

    def encoded(self) -> bytes:
        """Return the manifest as the bytes of manifest.json."""
        document = asdict(self)
        for name in ("records", "modelled"):  # an older manifest keeps its bytes, and so its bundle its digest
            if document[name] is None:
                del document[name]
        for spec in (*document["inputs"], *document["outputs"]):
            if spec["bound"] is None:
                del spec["bound"]
        return files.canonical_json(document)


_MANIFEST_READER: TypeAdapter[Manifest] = TypeAdapter(Manifest)
_REQUIRED = {one.name for one in fields(Manifest) if one.default is MISSING}


def older_schema(data: bytes) -> int | None:
    """Return the schema version of a manifest that an older toolchain wrote; None for anything else."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return None
    found = document.get("schema") if isinstance(document, dict) and document.keys() >= _REQUIRED else None
    return found if isinstance(found, int) and 0 < found < _SCHEMA else None


def read_manifest(data: bytes, where: str) -> Manifest:
    """Parse a manifest.

    Raises:
        VerificationError: It is not a manifest of this schema version.
    """
    if (older := older_schema(data)) is not None:
        raise VerificationError(
            f"the manifest of {where} is of schema version {older}, and this toolchain reads version {_SCHEMA}",
            hint="build it again with this toolchain, and deploy that",
        )
    try:
        found = _MANIFEST_READER.validate_json(data)
    except ValidationError as fault:
        lines = [f"{'.'.join(map(str, error['loc']))}: {error['msg']}" for error in fault.errors()]
        raise VerificationError(f"the manifest of {where} is not valid", details="\n".join(lines[:10])) from fault
    if faults := [str(spec) for spec in (*found.inputs, *found.outputs) if not _is_possible(spec)]:
        raise VerificationError(f"the manifest of {where} is not valid", details="\n".join(faults[:10]))
    return found


def _is_possible(spec: TensorSpec) -> bool:
    return spec.dtype in DTYPES and all(size >= 0 for size in spec.shape)
