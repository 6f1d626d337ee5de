"""Model and board in, bundle out: compile with TVM and keep library, graph and params apart."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import tvm
from numpy.typing import NDArray
from tvm import relax

import toolchain
from toolchain import bundle, files, interrupts, states, tensors, versions
from toolchain.backends.base import EXACT, NODES, OPERATIONS, SPARSE, Backend
from toolchain.backends.cpu.lowering import PIPELINE
from toolchain.backends.cpu.machine import this_machine
from toolchain.board import Board
from toolchain.bundle import Bundle, Reference, inventories, memory
from toolchain.bundle.manifest import (
    LARGEST_GRAPH,
    HalfOutput,
    InHalf,
    InInt8,
    Manifest,
    Modelled,
    Sparse,
    Tuned,
    Variant,
)
from toolchain.compile import applicable_records, every_size, executable, in_place, prepare, rows, variants
from toolchain.compile.applicable_records import RecordSources
from toolchain.compile.every_size import Joined
from toolchain.compile.executable import ENTRY, Compiled, lift_constants
from toolchain.compile.nodes import nodes_by_call
from toolchain.compile.request import BuildRequest, precision_options
from toolchain.compile.variants import Merged
from toolchain.errors import BuildError, InputError, VerificationError
from toolchain.models import importer, origins, source, sparsity
from toolchain.models.importer import ImportedModel
from toolchain.models.variants import dynamic_of
from toolchain.native import cross, elf
from toolchain.native.cross import Cross
from toolchain.pictures import Pictures
from toolchain.progress import stage
from toolchain.records.apply import Applied
from toolchain.records.metaschedule import target_table
from toolchain.records.tasks import called, layer_of
from toolchain.sounds import Sounds
from toolchain.tensors import Tensors
from toolchain.texts import Texts

_LISTED_WEIGHTS = 3
_GPU_PIPELINE = "default"  # of a GPU's kernels that this machine runs
_MAX_OPERATIONS = 1e18  # `bundle.kernels` reads numbers of up to 18 digits


@dataclass(frozen=True)
class Network:
    """A model for one set of shapes, and what its results are compared with.

    Attributes:
        imported: The model.
        reference: Inputs and expected outputs, saved in the bundle; None for none.
        variant: The name of the set of shapes; empty if it is the only one.
    """

    imported: ImportedModel
    reference: Reference | None = None
    variant: str = ""


@dataclass(frozen=True)
class _Scheduled:
    """A model on its way to machine code."""

    lowered: tvm.IRModule  # calls of kernels, which have no schedule yet
    applied: Applied  # the tuning records that were applied to them
    module: tvm.IRModule  # all kernels scheduled
    compiled: Compiled | None = None  # the module with its weights apart, if that was done already
    network: Network | None = None  # what the module computes, if that is not one of the request


@dataclass(frozen=True)
class _Compilation:
    """What the files of a bundle are written from."""

    networks: Sequence[Network]  # the model, for each set of shapes
    request: BuildRequest  # the options of the build
    driver: Cross  # the compiler that links the library
    applied: Applied  # the tuning records that were applied
    merged: Merged  # the scheduled modules and their weights
    modelled: Modelled | None  # the cycles that a model of the accelerator computes for it
    half: InHalf | None  # the difference of half precision from the reference
    int8: InInt8 | None  # the difference of the quantized model from the user's

    @property
    def imported(self) -> ImportedModel:
        """The model, for its first set of shapes."""
        return self.networks[0].imported

    @property
    def command(self) -> str:
        """The command line that makes the bundle again."""
        request = self.request
        threads = applicable_records.requested_key(request).threads
        options = applicable_records.options(
            self.applied, emulated=request.emulated, modelled=request.modelled, threads=threads
        )
        left_out = (f"--without {template}" for template in sorted(request.without))
        return " ".join([request.command(self.imported.source.origin), *options, *left_out])


def build(
    imported: ImportedModel,
    request: BuildRequest,
    folder: Path,
    *,
    reference: Reference | None = None,
    records: RecordSources | None = None,
) -> Bundle:
    """Compile a model for a board into a bundle.

    With a limit of memory that it exceeds, it is compiled again without the templates that pack weights larger.

    Args:
        imported: The model of the request.
        request: The board and the options; its `progress` is called with the number of kernels that had a record.
        folder: Where the bundle goes. An earlier bundle is replaced, anything else is an error.
        reference: Inputs and expected outputs, saved in the bundle.
        records: Tuning records, of which the best for the board's target are applied; None to apply none.

    Raises:
        BuildError: TVM, the compiler or the linker failed.
        InputError: The folder holds something else than a bundle.
    """
    return build_variants([Network(imported, reference)], request, folder, records=records)


def build_variants(
    networks: Sequence[Network], request: BuildRequest, folder: Path, *, records: RecordSources | None = None
) -> Bundle:
    """Compile a model for one or several sets of shapes into one bundle; arguments and errors as of `build`."""
    backend = request.backend
    if request.max_memory and backend.target.kind.name != "llvm":
        raise InputError(
            f"memory is not planned for board {request.board.name}, whose kernels run on another device",
            hint="leave --max-ram out",
        )
    sources = records or RecordSources()
    faults: list[_MemoryLimitError] = []
    for more in ((), *backend.larger):
        if more and set(more) <= set(request.without):
            continue
        if faults:
            request.progress(f"{faults[-1].message}: building again without {', '.join(more)}")
        attempt = replace(request, without=tuple(dict.fromkeys((*request.without, *more))))
        try:
            return _build(networks, attempt, folder, sources)
        except _MemoryLimitError as fault:
            faults.append(fault)
    raise min(faults, key=lambda fault: fault.peak)


class _MemoryLimitError(BuildError):
    """A process would need more memory than it may have.

    Attributes:
        peak: What it would need, in bytes.
    """

    peak: int = 0


def _build(networks: Sequence[Network], request: BuildRequest, folder: Path, records: RecordSources) -> Bundle:
    backend, name = request.backend, networks[0].imported.source.name
    opened = _for_every_size(networks, request, records) if request.model.range else None
    scheduled = [opened] if opened else _schedule_all(networks, request, records)
    for remark in dict.fromkeys(line for each in scheduled for line in backend.remarks(each.module)):
        request.progress(remark)
    driver = cross.choose(request.board, request.toolchain)
    modelled = _count_cycles(scheduled[0], backend)
    with _compile_errors(name):
        halves = [
            compare_in_half(each.module, network.imported, request, network.reference)
            for each, own in zip(scheduled, networks[: len(scheduled)], strict=True)
            for network in [each.network or own]
        ]
    reference = _joint_reference(networks)
    int8 = reference.int8 if reference else None
    with _compile_errors(name):
        merged = variants.merge([each.compiled or lift_constants(each.module) for each in scheduled])
    applied = _joint_records([each.applied for each in scheduled])
    work = _Compilation(networks, request, driver, applied, merged, modelled, _worst(halves), int8)
    # All files are written aside, and replace an earlier bundle in one step: a failed build leaves it as it is.
    with bundle.replacing(folder) as staging:
        activations = _write(work, staging)
        if reference is not None:
            reference.save(staging)
        manifest = _manifest(work, staging, activations)  # last, since it has the digests of the other files
        _check_memory(manifest, work)
        files.write_atomic(staging / bundle.MANIFEST, manifest.encoded())
        inventories.save(staging, manifest)
    return bundle.load(folder)


def _joint_reference(networks: Sequence[Network]) -> Reference | None:
    """Return the reference of all networks."""
    own = networks[0].reference
    if own is None or len(networks) == 1:
        return own
    others = {network.variant: network.reference for network in networks[1:] if network.reference}
    return replace(own, variants=others)


def _joint_records(applied: Sequence[Applied]) -> Applied:
    """Return what was applied to all networks; a kernel of several of them counts as often."""
    first = applied[0]
    if len(applied) == 1:
        return first
    lines = dict.fromkeys(line for each in applied for line in each.records.splitlines(keepends=True))
    return replace(
        first,
        tasks=sum(each.tasks for each in applied),
        tuned=sum(each.tuned for each in applied),
        shipped=sum(each.shipped for each in applied),
        records=b"".join(lines),
        modelled=next((each.modelled for each in applied if each.modelled), ""),
    )


def _worst(halves: Sequence[InHalf | None]) -> InHalf | None:
    """Return the least exact of several networks in half precision."""

    def badness(half: InHalf) -> tuple[bool, float]:
        worst = max((float("inf") if output.max_rel is None else output.max_rel for output in half.outputs), default=0)
        return not half.ok, worst

    return max((half for half in halves if half), key=badness, default=None)


def schedule(request: BuildRequest) -> tvm.IRModule:
    """Return a model's module with all kernels scheduled, as `build` compiles it; nothing is linked.

    Raises:
        InputError: There is no such model, or it cannot be imported.
        BuildError: TVM cannot compile it.
    """
    loaded = source.load_request(request.model)
    records = RecordSources(applicable_records.user_records(request), applicable_records.shipped_for(request))
    imported = importer.import_model(prepare.quantize_if_needed(loaded, request).source)
    return _schedule(imported, request, records).module


def load_graph(path: Path, board: Board) -> tvm.IRModule:
    """Return the module of a package or of a bundle's folder, its kernels scheduled.

    Args:
        path: The package or the folder.
        board: The board type that it must have been built for, resolved, with the requested precision.

    Raises:
        InputError: It is neither, or was built in another precision.
        VerificationError: It is incomplete or damaged, or was built for another board.
    """
    with bundle.at_hand(path) as opened:
        bundle.check_board(opened.manifest, board)
        for option in precision_options(board):
            if option not in opened.manifest.command.split():
                raise InputError(
                    f"{path.name} was not built with {option}", hint="leave the option out, or build it again"
                )
        text = files.read_limited(opened.folder / bundle.GRAPH, LARGEST_GRAPH, VerificationError).decode()
    with _compile_errors(path.name):
        module: tvm.IRModule = tvm.ir.load_json(text)
    return module


def _schedule(imported: ImportedModel, request: BuildRequest, records: RecordSources) -> _Scheduled:
    (scheduled,) = _schedule_all([Network(imported)], request, records)
    return scheduled


def _schedule_all(networks: Sequence[Network], request: BuildRequest, records: RecordSources) -> list[_Scheduled]:
    backend, name = request.backend, networks[0].imported.source.name
    lowered = [_lower(network, request, records) for network in networks]
    with _compile_errors(name):
        common = variants.common_choices([module for module, _ in lowered], backend) if len(lowered) > 1 else [{}]
    scheduled = []
    for (module, applied), choices in zip(lowered, common, strict=True):
        with _compile_errors(name):
            # A record is what was measured on the board: it counts more than the bytes of weights.
            written = backend.apply_choices(applied.module, {**choices, **applied.choices})
        scheduled.append(_Scheduled(module, applied, written))
    return scheduled


def _for_every_size(networks: Sequence[Network], request: BuildRequest, records: RecordSources) -> _Scheduled:
    """Return the network for every size of the request's range; tuning records are applied if it is of one row."""
    name, outputs = networks[0].imported.source.name, {each.variant: each.imported.outputs for each in networks}
    with _compile_errors(name):
        every = every_size.prepare(networks[-1].imported, outputs, request)
    if isinstance(every, Joined):
        return _Scheduled(every.lowered, Applied(every.lowered), every.compiled.module, every.compiled)
    one = Network(every.one, networks[0].reference)
    lowered, applied = _lower(one, request, records)
    with _compile_errors(name):
        written = request.backend.apply_choices(applied.module, applied.choices)
        compiled = rows.for_each_row(lift_constants(written), every.inputs, every.results)
    return _Scheduled(lowered, applied, written, compiled, one)


def _lower(network: Network, request: BuildRequest, records: RecordSources) -> tuple[tvm.IRModule, Applied]:
    """Return a network as calls of kernels, and the same with the tuning records applied."""
    imported, backend, name = network.imported, request.backend, network.imported.source.name
    with _compile_errors(name):
        lowered = backend.lower(in_place.prepared_module(imported, request))
    with _compile_errors(name):
        left_out = backend.unsupported_layers(imported.module)
    for layer in left_out:
        request.progress(f"the CPU computes {layer}")
    with _compile_errors(name):
        applied = records.apply(lowered, request)
    for task in applied.skipped:
        request.progress(f"the tuning record of {task} no longer fits the kernel and is ignored")
    if line := applicable_records.summary(applied, records, request):
        request.progress(f"variant {network.variant}: {line}" if network.variant else line)
    return lowered, applied


def _count_cycles(scheduled: _Scheduled, backend: Backend) -> Modelled | None:
    """Add up the cycles that a model of the board's accelerator computes for each kernel."""
    model = backend.machine_model
    if model is None:
        return None
    kernels = [function for _, function in called(scheduled.lowered)]
    layers = [(layer, str(kernel.attrs.get(EXACT, layer))) for kernel in kernels if (layer := layer_of(kernel))]
    # A network calls the same layer often, and the model takes long for each: it computes distinct ones alone.
    by_layer = {
        exact: model.cycles(exact, scheduled.applied.choices.get(layer)) for layer, exact in dict.fromkeys(layers)
    }
    offloaded = [cycles for _, exact in layers if (cycles := by_layer[exact]) is not None]
    if not offloaded:
        return None
    total, macs = sum(layer.cycles for layer in offloaded), sum(layer.macs for layer in offloaded)
    peak = offloaded[0].macs_per_cycle
    return Modelled(model.name, model.clock_mhz, len(offloaded), total, macs, peak, model.calibration)


def reproducible_text(script: str) -> str:
    """Return the text of a module with the offsets of buffers numbered as they appear in each function.

    TVM numbers them in the order of their addresses in memory, which differs from process to process.
    """

    def renumber(function: str) -> str:
        names: dict[str, str] = {}

        def rename(match: re.Match[str]) -> str:
            return names.setdefault(match[0], f"elem_offset_{len(names)}" if names else "elem_offset")

        return re.sub(r"\belem_offset(?:_\d+)?\b(?! ?=)", rename, function)

    header, *functions = re.split(r"(?m)^(?=    @)", script.rstrip() + "\n")
    return header + "".join(map(renumber, functions))


def _write(work: _Compilation, staging: Path) -> dict[str, int | None]:
    """Write the files that the manifest lists; return the bytes of activations of each entry, if they are known."""
    # One part for all sizes is that of the greatest.
    networks = work.networks if len(work.merged.parts) > 1 else work.networks[-1:]
    parts = zip(work.merged.parts, networks, strict=True)
    graph = work.merged.join([_graph(part, network.imported) for part, network in parts])
    activations = _write_library(work, staging / bundle.LIBRARY)
    files.write_atomic(staging / bundle.GRAPH, _graph_json(graph))
    files.write_atomic(staging / bundle.GRAPH_TEXT, reproducible_text(graph.script()).encode())
    files.write_atomic(staging / bundle.PARAMS, tensors.encode_aligned(work.merged.params))
    if work.applied.tuned:
        files.write_atomic(staging / bundle.RECORDS, work.applied.records)
    return activations


def _graph(compiled: tvm.IRModule, imported: ImportedModel) -> tvm.IRModule:
    """Return the module that the bundle shows: each kernel's computation and nodes of the file, but no schedule."""
    # A template's kernels have no body there: unrolled, they are less readable than the name of their layer.
    nothing = tvm.tirx.Evaluate(0)
    functions = {
        variable: function.with_body(nothing) if layer_of(function) else _with_operations(function)
        for variable, function in compiled.functions_items()
    }
    module = tvm.IRModule(functions)
    calls = json.dumps(nodes_by_call(rows.network_in(module), imported.module), separators=(",", ":"))
    # `calls` has the names of the nodes; TVM's spans would repeat them at each binding.
    module = origins.with_spans(module, {binding.var: None for binding in origins.bindings(module)})
    return tvm.IRModule(
        {**dict(module.functions_items()), module.get_global_var(ENTRY): module[ENTRY].with_attr(NODES, calls)}
    )


def _with_operations(function: Any) -> Any:
    """Return a kernel with its number of operations as an attribute, for profiles, which are made without TVM.

    Operations in loops of unknown length cannot be counted.
    """
    if not isinstance(function, tvm.tirx.PrimFunc):
        return function
    try:
        operations = tvm.s_tir.analysis.estimate_tir_flops(tvm.IRModule({"main": function}))
    except Exception:  # noqa: BLE001 - it raises errors of any class, and a profile works without the number
        return function
    return function.with_attr(OPERATIONS, f"{operations:.0f}") if 0 < operations < _MAX_OPERATIONS else function


def _graph_json(module: tvm.IRModule) -> bytes:
    text: str = tvm.ir.save_json(module)
    return text.encode()


@contextlib.contextmanager
def _compile_errors(name: str) -> Iterator[None]:
    """Raise any error of a step of the compiler as a build error."""
    try:
        yield
    except (BuildError, InputError):
        raise
    except Exception as fault:  # the compiler's passes raise errors of any class
        raise BuildError(
            f"TVM cannot compile {name}: {type(fault).__name__}",
            details=str(fault).strip()[-2000:],
            hint="run it again with --debug to see where; `toolchain inspect model` lists the model's operators",
        ) from fault
    interrupts.check()  # a Ctrl-C may have been lost in a callback of compiled code


def _write_library(work: _Compilation, path: Path) -> dict[str, int | None]:
    def link(output: str, objects: Sequence[str], **_: Any) -> None:
        work.driver.link(Path(output), [Path(item) for item in objects])

    name = work.imported.source.name
    with _compile_errors(name):
        machine_code = executable.compile_module(
            work.merged.module,
            work.request.backend.target,
            work.merged.entries,
            sum(spec.bytes for spec in work.networks[-1].imported.outputs) if work.request.model.range else 0,
        )
    with _compile_errors(name):
        machine_code.executable.export_library(str(path), fcompile=link)
    return machine_code.activations


def _manifest(work: _Compilation, staging: Path, activations: Mapping[str, int | None]) -> Manifest:
    board, backend, source, applied = work.request.board, work.request.backend, work.imported.source, work.applied
    tuned = Tuned()
    if applied.tuned or applied.shipped:
        digest = files.sha256_bytes(applied.records) if applied.tuned else ""
        tuned = Tuned(digest, applied.tasks, applied.tuned, applied.shipped, applied.modelled)
    of_entries = list(zip(work.merged.entries, work.merged.orders, activations.values(), strict=True))
    if work.request.model.range:  # one function for all
        of_entries *= len(work.networks)
    sets_of_shapes = [
        Variant(network.variant, entry, network.imported.source.inputs, network.imported.outputs, order, size)
        for network, (entry, order, size) in zip(work.networks, of_entries, strict=True)
    ]
    return Manifest(
        schema=4 if len(sets_of_shapes) > 1 else 3,
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
        params_order=work.merged.orders[0],
        inputs=source.inputs,
        outputs=work.imported.outputs,
        # those that decide which libraries and loaders can read the bundle
        versions={"toolchain": toolchain.__version__, **versions.tvm(), **versions.preparation()},
        compiler=asdict(work.driver.describe()),
        model={"origin": source.origin, "sha256": source.sha256},
        command=work.command,
        files=bundle.records(staging),
        reference=bundle.reference_record(staging),
        records=tuned,
        modelled=work.modelled,
        half=work.half,
        int8=work.int8,
        activations=activations[ENTRY],
        sparse=_sparse(work),
        states=in_place.marked(work.imported, work.merged.module),
        pictures=pipeline if isinstance(pipeline := work.request.pipeline, Pictures) else None,
        sounds=pipeline if isinstance(pipeline, Sounds) else None,
        texts=pipeline if isinstance(pipeline, Texts) else None,
        variants=tuple(sets_of_shapes) if len(sets_of_shapes) > 1 else (),
        supported_until=work.request.supported_until,
        dynamic=dynamic_of(range_) if (range_ := work.request.model.range) else None,
    )


def _check_memory(manifest: Manifest, work: _Compilation) -> None:
    planned, limit = memory.planned(manifest), work.request.max_memory
    if not limit or (planned and planned.peak <= limit):
        return
    if planned is None:
        raise BuildError(f"the memory of {manifest.name} depends on its data", hint="leave --max-ram out")
    largest = sorted(work.merged.params.values(), key=lambda array: -array.nbytes)[:_LISTED_WEIGHTS]
    weights = ", ".join(f"{'x'.join(map(str, array.shape))} {memory.mib(array.nbytes)}" for array in largest)
    smallest = -(-planned.peak // (1 << 20))
    fault = _MemoryLimitError(
        f"{manifest.name} needs {memory.mib(planned.peak)} of memory, and --max-ram allows {memory.mib(limit)}",
        details=f"{planned}\nlargest weights as packed: {weights}",
        hint=f"--max-ram {smallest}M is the smallest limit that works",
    )
    fault.peak = planned.peak
    raise fault


def _sparse(work: _Compilation) -> Sparse | None:
    """Count the kernels that leave out zero weights, and the zeros; None if there are no such kernels."""
    kernels = sum(str(name.name_hint).startswith(SPARSE) for name, _ in work.merged.module.functions_items())
    measured = sparsity.measure(work.imported.source.proto.graph) if kernels else None
    if measured is None:
        return None
    return Sparse(kernels, round(measured.zeros, 4), {name: round(share, 4) for name, share in measured.blocks.items()})


def compare_in_half(
    module: tvm.IRModule, imported: ImportedModel, request: BuildRequest, reference: Reference | None
) -> InHalf | None:
    """Compute a network as the board will round it, and compare that with the reference.

    Args:
        module: Its scheduled kernels, with their weights as constants.
        imported: The model.
        request: The board; the result is reported.
        reference: The inputs and the expected outputs.

    Returns:
        The differences; None where the board computes in single precision, or without a reference.
    """
    reduced = request.board.target.reduced_precision
    if reference is None or not reduced:
        return None
    unknown = InHalf(reference.runtime, _input_text(request), (), format=reduced)
    request.progress(stage(f"computing {unknown.phrase} on this machine"))
    try:
        pipeline = PIPELINE if request.board.backend == "cpu" else _GPU_PIPELINE
        call = _open(request.backend.on_cpu(module), imported, pipeline)
        pairs = imported.source.states
        call = states.sequence(call, imported.source.inputs, pairs) if pairs else call
        outputs = call(reference.inputs)
    except InputError as fault:
        result = replace(unknown, obstacle=fault.message)  # only the device can show it
    else:
        differences = []
        for name, expected in reference.outputs.items():
            difference = tensors.compare({name: outputs[name]}, {name: expected}, reference.tolerance)
            # Two digits, because the CPU that computed it decides the others.
            max_rel = float(f"{difference.max_rel:.1e}") if difference.max_rel < float("inf") else None
            differences.append(HalfOutput(name, max_rel, difference.tolerance, difference.ok))
        result = replace(unknown, outputs=tuple(differences))
    for line in result.lines():
        request.progress(line)
    return result


def _input_text(request: BuildRequest) -> str:
    """Say what a network is run with."""
    input_source = request.model.given
    path = input_source.image or input_source.sound or input_source.npz
    return path.name if path else f"random numbers of seed {input_source.seed}"


def _open(module: tvm.IRModule, imported: ImportedModel, pipeline: str) -> states.Call:
    # For this machine's own CPU, whose vector instructions make the emulation bearable.
    library = tvm.compile(module, target=this_machine(), tir_pipeline=pipeline)
    machine = relax.VirtualMachine(library, tvm.cpu())

    def run(inputs: Tensors) -> dict[str, NDArray[Any]]:
        result: Any = machine[ENTRY](*(tvm.runtime.tensor(inputs[spec.name]) for spec in imported.source.inputs))
        # A network with one output returns a tensor, any other a tuple.
        values = [result] if isinstance(result, tvm.runtime.Tensor) else list(result)
        outputs = {spec.name: value.numpy() for spec, value in zip(imported.outputs, values, strict=True)}
        return tensors.cut(outputs, imported.outputs)

    return run
