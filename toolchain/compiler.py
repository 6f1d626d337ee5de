"""Model and board in, bundle out: compile with TVM and keep library, graph and params apart."""

from __future__ import annotations

import importlib.metadata
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax

import toolchain
from toolchain import bundle, elf, files, tensors
from toolchain.backends import BACKENDS, Backend
from toolchain.board import Board
from toolchain.bundle import Bundle, Manifest, Reference
from toolchain.cross import Cross
from toolchain.errors import BuildError, InputError
from toolchain.model import ImportedModel
from toolchain.tensors import DTYPES

_ENTRY = "main"


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
) -> Bundle:
    """Compile a model for a board into a bundle.

    Args:
        imported: The model.
        board: The board type, resolved.
        cross: The compiler that links the library.
        folder: Where the bundle goes; a bundle that is there is replaced, anything else is left alone.
        command: The command line that makes the bundle again; part of the manifest.
        reference: What its outputs are to be compared with.

    Raises:
        BuildError: TVM, the compiler or the linker failed.
        InputError: The folder holds something else than a bundle.
    """
    backend = BACKENDS[board.backend]
    target = backend.target(board)
    compiled = lift_constants(_guarded(imported.source.name, lambda: backend.prepare(imported.module, board)))
    with _replacing(folder) as staging:
        _write_library(compiled.module, target, cross, staging / bundle.LIBRARY, imported.source.name)
        files.write_atomic(staging / bundle.GRAPH, _graph_json(compiled.module))
        files.write_atomic(staging / bundle.GRAPH_TEXT, (compiled.module.script().rstrip() + "\n").encode())
        tensors.save(staging / bundle.PARAMS, compiled.params)
        if reference is not None:
            reference.save(staging)
        manifest = _manifest(imported, board, staging, (backend, cross), tuple(compiled.params), command)
        files.write_atomic(staging / bundle.MANIFEST, manifest.encoded())
    return bundle.load(folder)


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
        target=_plain_target(backend.target(board)),
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


def _plain_target(target: tvm.target.Target) -> dict[str, Any]:
    return {
        "kind": str(target.kind.name),
        **{str(key): value if isinstance(value, int) else _plain(value) for key, value in target.attrs.items()},
    }


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, str) else [str(item) for item in value]


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
