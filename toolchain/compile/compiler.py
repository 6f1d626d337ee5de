"""Model and board in, bundle out: compile with TVM and keep library, graph and params apart."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tvm

import toolchain
from toolchain import bundle, files, interrupts, tensors, versions
from toolchain.backends.base import Backend
from toolchain.backends.base.attributes import EXACT, NODES, OPERATIONS
from toolchain.board import Board
from toolchain.bundle import Bundle, Reference, inventories
from toolchain.bundle.manifest import LARGEST_GRAPH, InHalf, InInt8, Manifest, Modelled, Tuned
from toolchain.compile import executable, nodes, prepare, rounding
from toolchain.compile import known as records
from toolchain.compile.constants import ENTRY, Compiled, lift_constants
from toolchain.compile.known import Known
from toolchain.compile.request import BuildRequest, precision
from toolchain.errors import BuildError, InputError, VerificationError
from toolchain.models import importer, origins, source
from toolchain.models.importer import ImportedModel
from toolchain.native import cross, elf
from toolchain.native.cross import Cross
from toolchain.records.apply import Applied
from toolchain.records.metaschedule import target_table
from toolchain.records.tasks import called, layer_of

_MOST_OPERATIONS = 1e18


@dataclass(frozen=True)
class _Work:
    """A model that was compiled, and how; what is left is to write it.

    Attributes:
        imported: The model.
        request: What was asked for.
        driver: The compiler that links its library.
        applied: The records that were applied to it.
        compiled: It.
        modelled: What a model of the accelerator says of it.
        half: How far half precision is from the reference.
        int8: How near the model is to the user's own.
    """

    imported: ImportedModel
    request: BuildRequest
    driver: Cross
    applied: Applied
    compiled: Compiled
    modelled: Modelled | None
    half: InHalf | None
    int8: InInt8 | None

    @property
    def command(self) -> str:
        """The command line that makes the bundle again."""
        request = self.request
        threads = records.wanted_key(request).threads
        options = records.options(self.applied, emulated=request.emulated, modelled=request.modelled, threads=threads)
        left_out = (f"--without {one}" for one in sorted(request.without))
        return " ".join([request.command(self.imported.source.origin), *options, *left_out])


def build(
    imported: ImportedModel,
    request: BuildRequest,
    folder: Path,
    *,
    reference: Reference | None = None,
    known: Known | None = None,
) -> Bundle:
    """Compile a model for a board into a bundle.

    Args:
        imported: The model of the request.
        request: For which board, and how; it is told for how many kernels there was a record.
        folder: Where the bundle goes; a bundle that is there is replaced, anything else is left alone.
        reference: What its outputs are to be compared with.
        known: Tuning records, of which the best for the board's target are applied; None to apply none.

    Raises:
        BuildError: TVM, the compiler or the linker failed.
        InputError: The folder holds something else than a bundle.
    """
    backend, name, known = request.backend, imported.source.name, known or Known()
    lowered = _guarded(name, lambda: backend.lower(prepare.fitted(imported, request)))
    for left in _guarded(name, lambda: backend.unsupported_layers(imported.module)):
        request.tell(f"the CPU computes {left}")
    applied: Applied = _guarded(name, lambda: known.applied(lowered, request))
    _tell_of(applied, known, request)
    finished = _guarded(name, lambda: backend.apply_choices(applied.module, applied.choices))
    for remark in backend.remarks(finished):
        request.tell(remark)
    driver, modelled = cross.choose(request.board, request.toolchain), _modelled(lowered, applied, backend)
    half: InHalf | None = _guarded(name, lambda: rounding.in_half(finished, imported, request, reference))
    int8 = reference.int8 if reference else None
    work = _Work(imported, request, driver, applied, lift_constants(finished), modelled, half, int8)
    with bundle.replacing(folder) as staging:
        _write(work, staging)
        if reference is not None:
            reference.save(staging)
        manifest = _manifest(work, staging)
        files.write_atomic(staging / bundle.MANIFEST, manifest.encoded())
        inventories.save(staging, manifest)
    return bundle.load(folder)


def scheduled(request: BuildRequest) -> tvm.IRModule:
    """Return a model's module with all kernels scheduled, as `build` compiles it; nothing is linked.

    Raises:
        InputError: There is no such model, or it cannot be imported.
        BuildError: TVM cannot compile it.
    """
    backend = request.backend
    loaded = source.load_request(request.model)
    found = records.Known(records.own_records(request), records.shipped_for(request))
    imported = importer.import_model(prepare.suited(loaded, request).source)
    lowered = _guarded(loaded.name, lambda: backend.lower(prepare.fitted(imported, request)))
    applied: Applied = _guarded(loaded.name, lambda: found.applied(lowered, request))
    _tell_of(applied, found, request)
    finished: tvm.IRModule = _guarded(loaded.name, lambda: backend.apply_choices(applied.module, applied.choices))
    return finished


def graph_of(path: Path, kind: Board) -> tvm.IRModule:
    """Return the module of a package or of a bundle's folder, its kernels scheduled.

    Args:
        path: The package or the folder.
        kind: The board type that it must have been built for, resolved, in the precision that is asked for, if any is.

    Raises:
        InputError: It is neither, or was built in another precision.
        VerificationError: It is not whole, or was built for another board.
    """
    with bundle.at_hand(path) as made:
        bundle.check_board(made.manifest, kind)
        for word in precision(kind):
            if word not in made.manifest.command.split():
                raise InputError(
                    f"{path.name} was not built with {word}", hint="leave the option out, or build it again"
                )
        text = files.read_limited(made.folder / bundle.GRAPH, LARGEST_GRAPH, VerificationError).decode()
    module: tvm.IRModule = _guarded(path.name, lambda: tvm.ir.load_json(text))
    return module


def _tell_of(applied: Applied, known: Known, request: BuildRequest) -> None:
    """Say for how many kernels there was a record."""
    for skipped in applied.skipped:
        request.tell(f"the tuning record of {skipped} no longer fits the kernel and is ignored")
    if line := records.summary(applied, known, request):
        request.tell(line)


def _tuned(applied: Applied) -> Tuned:
    if not applied.tuned and not applied.shipped:
        return Tuned()
    digest = files.sha256_bytes(applied.records) if applied.tuned else ""
    return Tuned(digest, applied.tasks, applied.tuned, applied.shipped, applied.modelled)


def _modelled(lowered: tvm.IRModule, applied: Applied, backend: Backend) -> Modelled | None:
    """Add up what a model of the board's accelerator says of each of its kernels."""
    model = backend.machine_model
    if model is None:
        return None
    layers = [(layer, str(one.attrs.get(EXACT, layer))) for _, one in called(lowered) if (layer := layer_of(one))]
    known = {exact: model.cycles(exact, applied.choices.get(layer)) for layer, exact in dict.fromkeys(layers)}
    found = [one for _, exact in layers if (one := known[exact]) is not None]
    if not found:
        return None
    cycles, macs = sum(one.cycles for one in found), sum(one.macs for one in found)
    most = found[0].macs_per_cycle
    return Modelled(model.name, model.clock_mhz, len(found), cycles, macs, most, model.calibration)


def _write(work: _Work, staging: Path) -> None:
    """Write what the manifest is about."""
    compiled, graph = work.compiled, _graph(work)
    _write_library(work, staging / bundle.LIBRARY)
    files.write_atomic(staging / bundle.GRAPH, _graph_json(graph))
    files.write_atomic(staging / bundle.GRAPH_TEXT, (graph.script().rstrip() + "\n").encode())
    tensors.save(staging / bundle.PARAMS, compiled.params)
    if work.applied.tuned:
        files.write_atomic(staging / bundle.RECORDS, work.applied.records)


def _graph(work: _Work) -> tvm.IRModule:
    """Return the module as the bundle shows it: what its kernels compute, and which nodes of the file, but not how."""
    module = _without_bodies(work.compiled.module)
    calls = json.dumps(nodes.of_calls(module, work.imported.module), separators=(",", ":"))
    module = origins.with_spans(module, {binding.var: None for binding in origins.bindings(module)})
    return tvm.IRModule(
        {**dict(module.functions_items()), module.get_global_var(ENTRY): module[ENTRY].with_attr(NODES, calls)}
    )


def _without_bodies(module: tvm.IRModule) -> tvm.IRModule:
    """Return a module in which a template's kernels have no body: unrolled, they say less than their layer does.

    Of the others it says how much they compute, for profiles: what reads it there knows no TVM.
    """
    nothing = tvm.tirx.Evaluate(0)
    functions = {
        variable: function.with_body(nothing) if layer_of(function) else _counted(function)
        for variable, function in module.functions_items()
    }
    return tvm.IRModule(functions)


def _counted(function: Any) -> Any:
    """Return a kernel that says how many operations it has, where they can be counted: not those of open loops."""
    if not isinstance(function, tvm.tirx.PrimFunc):
        return function
    try:
        operations = tvm.s_tir.analysis.estimate_tir_flops(tvm.IRModule({"main": function}))
    except Exception:  # noqa: BLE001 - it raises whatever it trips over, and a profile does without
        return function
    return function.with_attr(OPERATIONS, f"{operations:.0f}") if 0 < operations < _MOST_OPERATIONS else function


def _graph_json(module: tvm.IRModule) -> bytes:
    text: str = tvm.ir.save_json(module)
    return text.encode()


def _guarded(name: str, step: Callable[[], Any]) -> Any:
    """Run a step of the compiler; whatever it raises becomes a build error that says so."""
    try:
        done = step()
    except Exception as fault:  # the compiler's passes raise whatever they trip over, of any class
        if isinstance(fault, (BuildError, InputError)):
            raise
        raise BuildError(
            f"TVM cannot compile {name}: {type(fault).__name__}",
            details=str(fault).strip()[-2000:],
            hint="run it again with --debug to see where; `toolchain model inspect` lists the model's operators",
        ) from fault
    interrupts.check()  # a callback of compiled code may have lost it
    return done


def _write_library(work: _Work, path: Path) -> None:
    name, target = work.imported.source.name, work.request.backend.target
    built = _guarded(name, lambda: executable.compiled(work.compiled.module, target))

    def link(output: str, objects: Sequence[str], **_: Any) -> None:
        work.driver.link(Path(output), [Path(item) for item in objects])

    _guarded(name, lambda: built.export_library(str(path), fcompile=link))


def _manifest(work: _Work, staging: Path) -> Manifest:
    board, backend, source = work.request.board, work.request.backend, work.imported.source
    return Manifest(
        schema=3,
        name=source.name,
        board=board.name,
        machine=board.machine,
        triple=board.triple,
        target=target_table(backend.target),
        glibc=elf.minimum_glibc(staging / bundle.LIBRARY),
        cpu_features=backend.cpu_features,
        entry=ENTRY,
        library="model.so",
        params="params.safetensors",
        params_order=tuple(work.compiled.params),
        inputs=source.inputs,
        outputs=work.imported.outputs,
        versions=_versions(),
        compiler=asdict(work.driver.describe()),
        model={"origin": source.origin, "sha256": source.sha256},
        command=work.command,
        files=bundle.records(staging),
        reference=bundle.reference_record(staging),
        records=_tuned(work.applied),
        modelled=work.modelled,
        half=work.half,
        int8=work.int8,
    )


def _versions() -> dict[str, str]:
    """Return the versions that decide what a library needs around it."""
    return {"toolchain": toolchain.__version__, **versions.tvm(), **versions.preparation()}
