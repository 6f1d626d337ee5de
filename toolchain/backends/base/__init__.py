"""The base class of all backends, the protocols of their templates and models, and the attributes of their kernels."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from toolchain import files, process, resources, temporary, tvm_plugins
from toolchain.errors import InputError

if TYPE_CHECKING:
    import tvm

    from toolchain.board import Board
    from toolchain.errors import BuildError
    from toolchain.report import Section, Table
    from toolchain.tensors import Tensors

# --- estimates -------------------------------------------------------------------------------------------------------

# A backend's estimates of kernels by their machine code, without a board; nothing of it is measured.

Tell = Callable[[str], None]
"""Takes one line about progress."""


@dataclass(frozen=True)
class Estimate:
    """A model's estimate of one scheduled kernel.

    Attributes:
        ms: Estimated milliseconds of one call; None if the model has no estimate.
        spills: Values that are written to memory for want of registers.
        fault: Why there is no estimate, or why a device would not run the kernel; empty if all is well.
        answered: Whether the compiler answered; if it did not, it may another time.
    """

    ms: float | None = None
    spills: int = 0
    fault: str = ""
    answered: bool = True


class NetworkCosts(Protocol):
    """The costs of all kernels of a network."""

    def document(self) -> dict[str, Any]:
        """Return the costs for --json, with the stamp of the model."""

    def shown(self) -> list[str | Table]:
        """Return the costs as text and tables for a terminal."""

    def sections(self) -> list[Section]:
        """Return the costs as sections of an HTML page."""

    def refusal(self) -> BuildError | None:
        """Return the error of a network with kernels that the compiler refuses; None if it takes all."""


class CostModel(Protocol):
    """Estimates the costs of kernels by the machine code that a compiler makes of them."""

    @property
    def name(self) -> str:
        """The device of the estimates: those of two devices are not comparable."""

    @property
    def identity(self) -> str:
        """The compiler of the estimates, its version first: those of two compilers are not comparable, either."""

    @property
    def stamp(self) -> str:
        """The mark of every figure: `modelled`, and by which compiler."""

    @property
    def obstacle(self) -> str:
        """Why the model cannot judge candidates; empty if it can."""

    def estimates(self, modules: Sequence[tvm.IRModule], *, spilling: bool = True) -> list[Estimate]:
        """Estimate scheduled kernels, each the function `main` of a module.

        Args:
            modules: The kernels.
            spilling: Whether kernels that spill get a time as well: that is most of the work.

        Raises:
            BuildError: The compiler does not work here. A kernel that it refuses is no error: its estimate says so.
        """

    def network(self, name: str, module: tvm.IRModule) -> NetworkCosts:
        """Return the costs of a scheduled Relax module's kernels; without any on the device, the result says so."""


# --- attributes of kernels -------------------------------------------------------------------------------------------

LAYER = "toolchain.layer"
"""The layer, as JSON, of a kernel that a template computes: the tuner's name of it."""
EXACT = "toolchain.exact"
"""The same layer, as JSON, with the buffers and constants that it has in its network."""
CHOICE = "toolchain.choice"
"""The choice, as JSON, of a kernel that a template has written."""

EXAMPLES = "toolchain.examples"
"""Arguments of a template's kernel, by number, that cannot be random numbers when it is measured."""

SPARSE = "sparse_"
"""How the names of kernels begin that leave out zero weights."""

OPERATIONS = "toolchain.operations"
"""A kernel that no template computes, in a bundle's graph: its arithmetic operations, as text."""

NODES = "toolchain.nodes"
"""The function `main` of a bundle's graph: for each call of a kernel, in order, its name and which nodes of the model's
file it computes, the one with most of the work first, as JSON."""


@dataclass(frozen=True)
class Cycles:
    """A model's cycles of one kernel.

    Attributes:
        cycles: Clock cycles.
        macs: Useful multiply-adds.
        macs_per_cycle: The accelerator's multiply-adds in a cycle at best.
    """

    cycles: int
    macs: int
    macs_per_cycle: int


# --- backends --------------------------------------------------------------------------------------------------------

Choice = Mapping[str, Any]
"""A template of a backend with its settings, as records hold it."""


class Templates(Protocol):
    """The kernels that a backend writes itself, each with several choices."""

    def candidates(self, layer: str) -> Sequence[Choice]:
        """List the choices for a layer, the likely fastest first."""

    def variants(self, layer: str) -> Sequence[Choice]:
        """List further choices, which a tuner tries after those; none of them is a default."""

    def module(self, layer: str, choice: Choice) -> tvm.IRModule | None:
        """Return the kernel of a layer as the function `main`; None if this version cannot write that choice."""

    def fits(self, layer: str, choice: Choice) -> bool:
        """Whether a recorded choice is valid for a layer."""

    def operator(self, layer: str) -> str:
        """Return the operator of a layer, such as `conv2d`."""

    def gflop(self, layer: str) -> float:
        """Return billions of floating-point operations of one call."""


class MachineModel(Protocol):
    """A model of an accelerator that counts a kernel's cycles without running it."""

    @property
    def name(self) -> str:
        """Name of the model, for reports."""

    @property
    def calibration(self) -> str:
        """What the model was calibrated on; empty without a calibration."""

    @property
    def clock_mhz(self) -> float:
        """Clock of the accelerator."""

    def cycles(self, layer: str, choice: Choice | None) -> Cycles | None:
        """Return the cycles of a layer with a choice, or with the likely fastest; None if the CPU computes it.

        Raises:
            BuildError: The layer cannot be computed with that choice.
        """


class Backend(ABC):
    """The compiler of one board, for builds, the tuner and the command line.

    Args:
        board: The board type, resolved.
        without: Names of templates that must not be used.
        threads: Threads that kernels are chosen for; 0 for one on each core.
    """

    template_names: ClassVar[tuple[str, ...]] = ()
    """Names of the templates."""
    larger: ClassVar[tuple[tuple[str, ...], ...]] = ()
    """Those of them that need more memory than others, by what a build that exceeds a limit tries without them."""
    int8_template: ClassVar[str] = ""
    """The template of an accelerator that computes int8 alone, for which a float network is quantized first."""
    runtime: ClassVar[str] = ""
    """Folder of the device runtime that TVM's wheel lacks; empty if it lacks none."""

    def __init__(self, board: Board, without: Collection[str] = (), threads: int = 0) -> None:
        self.board = board
        self.without = frozenset(without)
        self.threads = threads

    @property
    def computes_int8(self) -> bool:
        """Whether an accelerator that computes int8 alone is used."""
        return bool(self.int8_template) and self.int8_template not in self.without

    @property
    @abstractmethod
    def target(self) -> tvm.target.Target:
        """The TVM code-generation target.

        Raises:
            InputError: LLVM does not know the board's CPU, or the backend does not support the board file's options.
        """

    @property
    @abstractmethod
    def cpu_features(self) -> tuple[str, ...]:
        """The /proc/cpuinfo flags without which the compiled code must not be run."""

    @property
    @abstractmethod
    def templates(self) -> Templates:
        """The kernels that the backend writes itself, without those of excluded templates."""

    @staticmethod
    @abstractmethod
    def space(meta_schedule: Any) -> Any:
        """Return the generator of design spaces for the kernels that no template computes.

        Args:
            meta_schedule: TVM's package of that name.
        """

    def rescale_for_half(
        self,
        module: tvm.IRModule,
        samples: Callable[[], Sequence[Tensors]],  # noqa: ARG002 - for half precision
        tell: Callable[[str], None],  # noqa: ARG002 - as above
    ) -> tvm.IRModule:
        """Return a module whose activations fit the range of half precision, with the same results.

        Args:
            module: The model.
            samples: Makes typical inputs, each by name, in the order of the model's signature.
            tell: Called with one line about the change.
        """
        return module

    @abstractmethod
    def lower(self, module: tvm.IRModule) -> tvm.IRModule:
        """Rewrite an imported Relax module into calls of kernels, which can be tuned one by one.

        Kernels that a template computes have the attribute `LAYER` and no body yet; the others are fused
        TIR without a schedule. Weights stay constants.

        Raises:
            InputError: The board file asks for half precision, and the backend has none.
        """

    @abstractmethod
    def schedule(self, module: tvm.IRModule) -> tvm.IRModule:
        """Schedule the kernels that no template computes, without tuning records."""

    @abstractmethod
    def apply_choices(self, module: tvm.IRModule, choices: Mapping[str, Choice]) -> tvm.IRModule:
        """Write the kernels of a lowered module, pack their weights, and schedule the rest.

        Args:
            module: The result of `lower`; other kernels may have a schedule by now.
            choices: The choice for each layer; without a valid one, the likely fastest is taken.
        """

    def common_choices(self, layers: Sequence[str]) -> Sequence[Choice] | None:  # noqa: ARG002 - for CPUs
        """Return a choice for each of several layers with equal weights, by which most pack these in the same way.

        Args:
            layers: The layers, as JSON; they differ in the shapes of their activations.

        Returns:
            The choices, none of them clearly slower than its layer's fastest; None for those of a build of one layer.
        """
        return None

    def add_half_blocks(self, module: tvm.IRModule) -> tvm.IRModule:
        """Return scheduled kernels, of a build or of a search, with the blocks that sum up in half precision."""
        return module

    @abstractmethod
    def open_choices(self, kernels_by_size: Sequence[Sequence[Any]]) -> list[dict[str, Choice]]:
        """Choose how templates compute layers for every size of a dimension.

        Args:
            kernels_by_size: The functions of lowered modules, each at all sizes, the greatest first.

        Returns:
            For each size, choices by layer.
        """

    @abstractmethod
    def open_kernel(
        self, lowered: Sequence[Any], written: Sequence[Any], sizes: Sequence[int], choices: Mapping[str, Choice]
    ) -> Any:
        """Return a kernel for every size of a dimension; if it depends on the size, that is its last parameter.

        Args:
            lowered: The kernel before it was written or scheduled, at all sizes, the greatest first.
            written: The kernel at the greatest of them.
            sizes: The sizes.
            choices: By layer of the greatest size, how it is computed.

        Raises:
            DifferentError: There is none.
        """

    def remarks(self, module: tvm.IRModule) -> Sequence[str]:  # noqa: ARG002 - for half precision
        """List remarks for the user about the kernels that `apply_choices` returned."""
        return ()

    def on_cpu(self, module: tvm.IRModule) -> tvm.IRModule:
        """Return the result of `apply_choices` as kernels for this machine's CPU that round as the board's do.

        Raises:
            InputError: A kernel cannot be computed here.
        """
        return module

    def unsupported_layers(self, module: tvm.IRModule) -> Sequence[str]:  # noqa: ARG002 - for accelerators
        """Name the layers of an imported module that the accelerator cannot compute, each with the cause."""
        return ()

    @property
    def machine_model(self) -> MachineModel | None:
        """A model of the board's accelerator; None if kernels are measured instead."""
        return None

    @property
    def cost_model_name(self) -> str:
        """The name of `cost_model`, which needs no compiler; empty if the board has no cost model."""
        return ""

    def cost_model(self, tell: Tell) -> CostModel:  # noqa: ARG002 - for Mali
        """Return the model of kernels' costs on the board.

        Args:
            tell: Receives lines about progress.

        Raises:
            InputError: The board has no cost model.
            BuildError: The model's compiler cannot be set up here.
        """
        raise InputError(
            f"there is no cost model for the kernels of board {self.board.name}",
            hint="use a board whose file has [gpu], such as rk3588",
        )

    @property
    def shipped(self) -> str:
        """Name of the toolchain's own tuning records for the board; empty if it has none."""
        return ""

    def python_runtime(self, tell: Callable[[str], None]) -> Path:
        """Build the device runtime that TVM's wheel lacks, for this machine's Python; return the library.

        Args:
            tell: Called with one line before the build.

        Raises:
            InputError: TVM needs no other runtime for this board.
            BuildError: The build failed.
        """
        if not self.runtime:
            raise InputError(
                "TVM runs CPU kernels without an additional library", hint="pass a board with an accelerator to --board"
            )
        return build_plugin(self.runtime, tell)


# --- runtimes for this machine's Python ------------------------------------------------------------------------------

_TIMEOUT_S = 600.0
# What the runtimes of devices ask for beside their own.
_SHARED = ("model/json.cc",)
# The folders from which TVM's sources find each other: see runtime/CMakeLists.txt.
_SHIMS = ("tvm/include", "tvm/include/tvm", "tvm/include/tvm/support/cuda", "")


def build_plugin(device: str, tell: Callable[[str], None]) -> Path:
    """Build a plug-in and put it where every later `import tvm` loads it from.

    It is compiled by g++, not by the compiler of the boards' programs: exceptions of TVM's wheel pass through it.

    Args:
        device: Folder of the runtime's sources, which names the plug-in too.
        tell: Called before the build, which takes some seconds.

    Raises:
        BuildError: There is no compiler, or it refuses the sources.
    """
    target = tvm_plugins.folder() / f"libedge_{device}.so"
    target.parent.mkdir(parents=True, exist_ok=True)
    tell(f"building {target.name}")
    with temporary.folder() as name:
        unity = Path(name) / "plugin.cc"
        sources = [*sorted((resources.RUNTIME / device).glob("*.cc")), *(resources.RUNTIME / name for name in _SHARED)]
        unity.write_text("".join(f'#include "{path}"\n' for path in sources), encoding="utf-8")
        library = Path(name) / target.name
        process.run(_command(unity, library), timeout=_TIMEOUT_S)
        files.write_atomic(target, library.read_bytes())
    return target


def _command(source: Path, library: Path) -> list[str]:
    tvm, ffi = resources.package_folder("tvm"), resources.package_folder("tvm_ffi")
    shims = [f"-I{resources.RUNTIME / 'shims' / shim}" for shim in _SHIMS]
    includes = [f"-I{tvm / 'include'}", f"-I{ffi / 'include'}", f"-I{tvm / 'src' / 'runtime'}", *shims]
    flags = ["-std=c++17", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-pthread"]
    libraries = [f"-L{tvm / 'lib'}", f"-L{ffi / 'lib'}", "-ltvm_runtime", "-ltvm_ffi", "-ldl", "-Wl,-z,defs"]
    return [os.environ.get("CXX", "g++"), *flags, *includes, str(source), "-o", str(library), *libraries]
