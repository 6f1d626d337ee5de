"""Model and board in, bundle out: compile with TVM and keep library, graph and params apart."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax

import toolchain
from toolchain import bundle, elf, files, inputs, quantize, tensors
from toolchain.backends import BACKENDS, Backend
from toolchain.backends._attributes import EXACT
from toolchain.board import Board, boards_folder
from toolchain.bundle import Bundle, Manifest, Modelled, Reference, Tuned
from toolchain.cross import Cross
from toolchain.errors import BuildError, InputError
from toolchain.model import ImportedModel, SourceModel
from toolchain.tensors import DTYPES
from toolchain.tuning._tvm import target_table
from toolchain.tuning.apply import Applied, apply
from toolchain.tuning.records import SHIPPED, Key, RecordFile, Records
from toolchain.tuning.tasks import called, layer_of

_MOST_CORES = 2  # times those that shipped records were measured with
_ENTRY = "main"
_SAMPLES = 8  # to calibrate with, where a network is quantized on its way


@dataclass(frozen=True)
class Compiled:
    """A Relax module that takes its weights as arguments, and those weights in the order of the arguments."""

    module: tvm.IRModule
    params: dict[str, NDArray[Any]]


def build(  # noqa: PLR0913 - a build has these independent parts
    imported: ImportedModel,
    board: Board,
    cross: Cross,
    folder: Path,
    *,
    command: str,
    reference: Reference | None = None,
    records: Records | None = None,
    shipped: Records | None = None,
    emulated: bool = False,
    without: Collection[str] = (),
    tell: Callable[[str], None] = lambda _line: None,
) -> Bundle:
    """Compile a model for a board into a bundle.

    Args:
        imported: The model.
        board: The board type, resolved.
        cross: The compiler that links the library.
        folder: Where the bundle goes; a bundle that is there is replaced, anything else is left alone.
        command: The command line that makes the bundle again, but for the options about tuning records, which are
            added; part of the manifest.
        reference: What its outputs are to be compared with.
        records: Tuning records, of which the best for the board's target are applied; None to apply none.
        shipped: Records of the backend's templates that come with the toolchain, for what `records` does not know.
        emulated: Whether those of an emulator are wanted, instead of those of a real board.
        without: Names of templates that must not be used.
        tell: Told for how many kernels there was a record.

    Raises:
        BuildError: TVM, the compiler or the linker failed.
        InputError: The folder holds something else than a bundle.
    """
    backend = BACKENDS[board.backend]
    target = backend.target(board)
    name = imported.source.name
    known = Known(records, shipped, emulated)
    lowered = _guarded(name, lambda: backend.lowered(imported.module, board, without))
    for left in _guarded(name, lambda: backend.left_out(imported.module, board, without)):
        tell(f"the CPU computes {left}")
    applied: Applied = _guarded(name, lambda: known.applied(lowered, board, without))
    _tell_of(applied, known, board, tell)
    finished = _guarded(name, lambda: backend.finished(applied.module, board, applied.choices, without))
    compiled = lift_constants(finished)
    with _replacing(folder) as staging:
        _write_library(compiled.module, target, cross, staging / bundle.LIBRARY, name)
        graph = _without_bodies(compiled.module)
        files.write_atomic(staging / bundle.GRAPH, _graph_json(graph))
        files.write_atomic(staging / bundle.GRAPH_TEXT, (graph.script().rstrip() + "\n").encode())
        tensors.save(staging / bundle.PARAMS, compiled.params)
        if reference is not None:
            reference.save(staging)
        if applied.tuned:
            files.write_atomic(staging / bundle.RECORDS, applied.records)
        again = " ".join([command, *known.options(applied), *(f"--without {one}" for one in sorted(without))])
        manifest = _manifest(imported, board, staging, (backend, cross), tuple(compiled.params), again)
        manifest = dataclasses.replace(manifest, records=_tuned(applied), modelled=_modelled(lowered, applied, board))
        files.write_atomic(staging / bundle.MANIFEST, manifest.encoded())
    return bundle.load(folder)


def computes_int8(board: Board, without: Collection[str] = ()) -> bool:
    """Whether a board's accelerator, which computes int8 alone, is made use of."""
    backend = BACKENDS[board.backend]
    return backend.INT8 and backend.TEMPLATES[0] not in without


def suited(
    source: SourceModel,
    board: Board,
    given: inputs.Source,
    without: Collection[str] = (),
    tell: Callable[[str], None] = lambda _line: None,
) -> SourceModel:
    """Return a model as the board's accelerator can compute it: quantized, where that computes int8 alone.

    A network of floats is calibrated with what it is to be run with, and with random numbers of the same seed; a user
    who has data of the model's own quantizes it beforehand. One that cannot be quantized stays as it is.

    Args:
        source: The model.
        board: The board type.
        given: What the model is run with.
        without: Names of templates that must not be used.
        tell: Told when a model is quantized, or why it is not.
    """
    if not computes_int8(board, without) or quantize.is_quantized(source):
        return source
    if obstacle := _obstacle(source):
        tell(f"{obstacle}: the CPU computes everything")
        return source
    tell(f"quantizing it to int8 with {_SAMPLES} samples; `toolchain quantize` does that with data of your own")
    random = [inputs.random(source.inputs, given.seed + number) for number in range(_SAMPLES)]
    first = [inputs.make(given, source.inputs)] if given.npz or given.image else []
    return quantize.quantized(source, [*first, *random][:_SAMPLES]).source


def _obstacle(source: SourceModel) -> str:
    """Say why a model cannot be quantized; empty if it can."""
    try:
        found = quantize.quantizable(source)
    except InputError as fault:
        return fault.message
    return "" if found else f"{source.name} has no convolution that could be quantized"


def record_key(board: Board, *, emulated: bool = False) -> Key:
    """Return what records for a board have to be found under."""
    return Key.of(target_table(BACKENDS[board.backend].target(board)), emulated=emulated)


@dataclass(frozen=True)
class Known:
    """The tuning records that a build may apply.

    Attributes:
        records: Those of the user; None to apply none.
        shipped: Those that come with the toolchain; None to apply none.
        emulated: Whether those of an emulator are wanted.
    """

    records: Records | None
    shipped: Records | None
    emulated: bool

    def applied(self, lowered: tvm.IRModule, board: Board, without: Collection[str]) -> Applied:
        """Apply what fits to a lowered module."""
        if self.records is None and self.shipped is None:
            return Applied(lowered)
        backend = BACKENDS[board.backend]
        return apply(
            lowered,
            backend.target(board),
            self.records or Records(),
            backend.templates(board, without),
            shipped=self.shipped,
            emulated=self.emulated,
        )

    def options(self, applied: Applied) -> tuple[str, ...]:
        """Return the options of a command line that applies the same records again."""
        if applied.tuned:
            return (f"--records {bundle.RECORDS}", *(("--emulated",) if self.emulated else ()))
        return (f"--records {SHIPPED}",) if applied.shipped else ("--no-records",)


def shipped_records(board: Board) -> Records | None:
    """Return the records that come with the toolchain and suit a board, its resolved cores too; None if there are none.

    They also say how the work is cut, and what was best for two cores leaves most of sixteen idle.
    """
    name = BACKENDS[board.backend].shipped(board)
    path = boards_folder() / "records" / f"{name}.jsonl"
    if not name or not path.is_file():
        return None
    known = RecordFile(path).read()
    fitting = [one for one in known.trials if board.cores <= _MOST_CORES * one.target.get("num-cores", 1)]
    return Records(known.workloads, tuple(fitting)) if fitting else None


def _tell_of(applied: Applied, known: Known, board: Board, tell: Callable[[str], None]) -> None:
    """Say for how many kernels there was a record."""
    for skipped in applied.skipped:
        tell(f"the tuning record of {skipped} does not fit it any more, and is left out")
    if known.records is not None and record_key(board, emulated=known.emulated) not in known.records.keys:
        tell(f"no tuning records are for the target of {board.name}")
    elif known.records is not None:
        tell(f"applied tuning records for {applied.tuned} of {applied.tasks} tasks")
    if applied.shipped:
        tell(f"applied the toolchain's own records for {applied.shipped} of {applied.tasks} tasks")


def _tuned(applied: Applied) -> Tuned:
    if not applied.tuned and not applied.shipped:
        return Tuned()
    digest = files.sha256_bytes(applied.records) if applied.tuned else ""
    return Tuned(digest, applied.tasks, applied.tuned, applied.shipped)


def _modelled(lowered: tvm.IRModule, applied: Applied, board: Board) -> Modelled | None:
    """Add up what a model of the board's accelerator says of each of its kernels."""
    model = BACKENDS[board.backend].machine_model(board)
    if model is None:
        return None
    layers = [(layer, str(one.attrs.get(EXACT, layer))) for _, one in called(lowered) if (layer := layer_of(one))]
    known = {exact: model.cycles(exact, applied.choices.get(layer)) for layer, exact in dict.fromkeys(layers)}
    found = [one for _, exact in layers if (one := known[exact]) is not None]
    if not found:
        return None
    cycles, macs = sum(one.cycles for one in found), sum(one.macs for one in found)
    return Modelled(model.name, model.clock_mhz, len(found), cycles, macs, found[0].macs_per_cycle)


def _without_bodies(module: tvm.IRModule) -> tvm.IRModule:
    """Return a module in which a template's kernels have no body: unrolled, they say less than their layer does."""
    nothing = tvm.tirx.Evaluate(0)
    functions = {
        variable: function.with_body(nothing) if layer_of(function) else function
        for variable, function in module.functions_items()
    }
    return tvm.IRModule(functions)


def _graph_json(module: tvm.IRModule) -> bytes:
    text: str = tvm.ir.save_json(module)
    return text.encode()


def lift_constants(module: tvm.IRModule) -> Compiled:
    """Turn the tensor constants of `main` into arguments that follow its inputs.

    The library then holds no weights: it stays the same when they change, and they are stored once.
    """
    lifter = _ConstantLifter()
    main = module[_ENTRY]
    body = lifter.visit_expr(main.body)
    lifted = relax.Function([*main.params, *lifter.variables], body, main.ret_ty, attrs=main.attrs)
    rewritten = tvm.IRModule({**dict(module.functions_items()), module.get_global_var(_ENTRY): lifted})
    return Compiled(relax.transform.Normalize()(rewritten), lifter.params)


@relax.expr_functor.mutator
class _ConstantLifter(relax.PyExprMutator):  # type: ignore[misc]
    """Replaces each tensor constant by a variable `p<n>` and remembers its value."""

    def __init__(self) -> None:
        super().__init__(None)
        self.variables: list[relax.Var] = []
        self.params: dict[str, NDArray[Any]] = {}

    def visit_generic_const_(self, op: tvm.ir.GenericConst) -> tvm.ir.Expr:
        value = op.value.numpy()
        # Scalars become immediates of the kernels that use them; an argument would only slow those down.
        if value.size <= 1 or str(value.dtype) not in DTYPES:
            return op
        name = f"p{len(self.variables)}"
        variable = relax.Var(name, relax.TensorType(value.shape, str(value.dtype)))
        self.variables.append(variable)
        self.params[name] = np.ascontiguousarray(value)
        return variable


def _guarded(name: str, step: Callable[[], Any]) -> Any:
    """Run a step of the compiler; whatever it raises becomes a build error that says so."""
    try:
        return step()
    except Exception as fault:  # the compiler's passes raise whatever they trip over, of any class
        if isinstance(fault, (BuildError, InputError)):
            raise
        raise BuildError(
            f"TVM cannot compile {name}: {type(fault).__name__}",
            details=str(fault).strip()[-2000:],
            hint="`--debug` shows where; `toolchain model inspect` shows the model's operators",
        ) from fault


def _write_library(module: tvm.IRModule, target: tvm.target.Target, cross: Cross, path: Path, name: str) -> None:
    executable = _guarded(name, lambda: tvm.compile(module, target=target))

    def link(output: str, objects: Sequence[str], **_: Any) -> None:
        cross.link(Path(output), [Path(item) for item in objects])

    _guarded(name, lambda: executable.export_library(str(path), fcompile=link))


def _manifest(  # noqa: PLR0913, PLR0917 - a manifest has that many sources
    imported: ImportedModel,
    board: Board,
    staging: Path,
    tools: tuple[Backend, Cross],
    params: tuple[str, ...],
    command: str,
) -> Manifest:
    backend, cross = tools
    source = imported.source
    return Manifest(
        schema=1,
        name=source.name,
        board=board.name,
        machine=board.machine,
        triple=board.triple,
        target=target_table(backend.target(board)),
        glibc=elf.minimum_glibc(staging / bundle.LIBRARY),
        cpu_features=backend.cpu_features(board),
        entry=_ENTRY,
        library="model.so",
        params="params.safetensors",
        params_order=params,
        inputs=source.inputs,
        outputs=imported.outputs,
        versions=versions(),
        compiler=asdict(cross.describe()),
        model={"origin": source.origin, "sha256": source.sha256},
        command=command,
        files=bundle.records(staging),
    )


def versions() -> dict[str, str]:
    """Return the versions that decide what a library needs around it."""
    return {
        "toolchain": toolchain.__version__,
        "tvm": importlib.metadata.version("apache-tvm"),
        "tvm_ffi": importlib.metadata.version("apache-tvm-ffi"),
    }


@contextmanager
def _replacing(folder: Path) -> Iterator[Path]:
    """Fill a folder aside and let it take the place of an older bundle at the end."""
    if folder.exists() and not (folder / bundle.MANIFEST).is_file() and any(folder.iterdir()):
        raise InputError(f"{folder} holds something else than a bundle", hint="name a new folder with -o")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    except OSError as fault:
        raise files.unwritable(folder, fault) from fault
    try:
        yield staging
        staging.chmod(0o755)
        if folder.exists():
            shutil.rmtree(folder)
        staging.replace(folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
