"""What all backends have in common: the class that they derive from, and what is said about their kernels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from toolchain.backends.base.attributes import Cycles
from toolchain.backends.base.costs import CostModel, Tell
from toolchain.backends.base.plugin import build_plugin
from toolchain.errors import InputError

if TYPE_CHECKING:
    import tvm

    from toolchain.board import Board
    from toolchain.tensors import Tensors

Choice = Mapping[str, Any]
"""A template of a backend with its settings, as records hold it."""


class Templates(Protocol):
    """The kernels that a backend writes itself, each of them in several ways."""

    def candidates(self, layer: str) -> Sequence[Choice]:
        """List the ways to compute a layer, the one that is likely the fastest first."""

    def module(self, layer: str, choice: Choice) -> tvm.IRModule | None:
        """Return the kernel of a layer as the function `main`; None if it cannot be written in that way any more."""

    def fits(self, layer: str, choice: Choice) -> bool:
        """Whether a layer can be computed in a way that was chosen at another time."""

    def operator(self, layer: str) -> str:
        """Name what a layer does, such as `conv2d`."""

    def gflop(self, layer: str) -> float:
        """Return billions of floating-point operations of one call."""


class MachineModel(Protocol):
    """A model of an accelerator that tells how long a kernel takes without running it."""

    @property
    def name(self) -> str:
        """Name of the model, for reports."""

    @property
    def calibration(self) -> str:
        """What the model was calibrated on; empty where nothing was."""

    @property
    def clock_mhz(self) -> float:
        """Clock of the accelerator."""

    def cycles(self, layer: str, choice: Choice | None) -> Cycles | None:
        """Return what a layer takes in a chosen way, or else in the likely fastest; None if others compute it.

        Raises:
            BuildError: It cannot be computed in that way.
        """


class Backend(ABC):
    """What the compiler, the tuner and the command line ask about one board.

    Args:
        board: The board type, resolved.
        without: Names of templates that must not be used.
    """

    template_names: ClassVar[tuple[str, ...]] = ()
    """Names of the templates."""
    int8_template: ClassVar[str] = ""
    """The template of an accelerator that computes int8 alone, so that a network of floats is quantized first."""
    runtime: ClassVar[str] = ""
    """Folder of the runtime that TVM lacks to use the backend's devices in this machine's Python."""

    def __init__(self, board: Board, without: Collection[str] = ()) -> None:
        self.board = board
        self.without = frozenset(without)

    @property
    def computes_int8(self) -> bool:
        """Whether an accelerator that computes int8 alone is made use of."""
        return bool(self.int8_template) and self.int8_template not in self.without

    @property
    @abstractmethod
    def target(self) -> tvm.target.Target:
        """The TVM code-generation target.

        Raises:
            InputError: LLVM does not know the board's CPU, or the backend not what the board file asks for.
        """

    @property
    @abstractmethod
    def cpu_features(self) -> tuple[str, ...]:
        """The /proc/cpuinfo flags without which the compiled code must not be run."""

    @property
    @abstractmethod
    def templates(self) -> Templates:
        """The kernels that the backend writes itself, but for those of templates that are left out."""

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
        samples: Callable[[], Sequence[Tensors]],  # noqa: ARG002 - for those whose numbers have ends
        tell: Callable[[str], None],  # noqa: ARG002 - as above
    ) -> tvm.IRModule:
        """Return an imported module as it suits the numbers that it computes with; the results stay the same.

        Args:
            module: The model.
            samples: Makes inputs that it is typically run with, each by name, in the order of its signature.
            tell: Called with one line about what was done.
        """
        return module

    @abstractmethod
    def lower(self, module: tvm.IRModule) -> tvm.IRModule:
        """Rewrite an imported Relax module into calls of kernels, which can be tuned one by one.

        Kernels that a template computes have the attribute `attributes.LAYER` and no body yet; the others are fused
        TIR without a schedule. Weights stay constants.

        Raises:
            InputError: The board file asks for half precision, and the backend has none.
        """

    @abstractmethod
    def schedule(self, module: tvm.IRModule) -> tvm.IRModule:
        """Schedule the kernels that no template computes, as they are where nothing was tuned."""

    @abstractmethod
    def apply_choices(self, module: tvm.IRModule, choices: Mapping[str, Choice]) -> tvm.IRModule:
        """Write the kernels of a lowered module, pack the weights as they want them, and schedule the rest.

        Args:
            module: What `lower` returned; other kernels may have got a schedule since.
            choices: By layer, how to compute it; where nothing fits, in the way that is likely the fastest.
        """

    def add_half_blocks(self, module: tvm.IRModule) -> tvm.IRModule:
        """Return kernels that have a schedule as they are compiled: those of a build, and candidates of a search."""
        return module

    def remarks(self, module: tvm.IRModule) -> Sequence[str]:  # noqa: ARG002 - for those who have something to say
        """Say what whoever builds should know about the kernels that `apply_choices` returned."""
        return ()

    def on_cpu(self, module: tvm.IRModule) -> tvm.IRModule:
        """Return what `apply_choices` returned as kernels for this machine's CPU that round as the board's do.

        Raises:
            InputError: A kernel cannot be computed here.
        """
        return module

    def unsupported_layers(self, module: tvm.IRModule) -> Sequence[str]:  # noqa: ARG002 - for accelerators
        """Name the layers of an imported module that the accelerator leaves to the CPU, each with the cause."""
        return ()

    @property
    def machine_model(self) -> MachineModel | None:
        """A model of the board's accelerator; None where kernels are measured."""
        return None

    @property
    def cost_model_name(self) -> str:
        """What `cost_model` calls itself, without a compiler; empty where there is none."""
        return ""

    def cost_model(self, tell: Tell) -> CostModel:  # noqa: ARG002 - for those who have one
        """Return the model of what kernels cost on the board.

        Args:
            tell: Told before what takes a while, and how far it is.

        Raises:
            InputError: There is none of this board.
            BuildError: It cannot be made here.
        """
        raise InputError(
            f"there is no cost model for the kernels of board {self.board.name}",
            hint="use a board whose file has [gpu], such as rk3588",
        )

    @property
    def shipped(self) -> str:
        """Name of the tuning records that come with the toolchain and suit the board; empty if there are none."""
        return ""

    def python_runtime(self, tell: Callable[[str], None]) -> Path:
        """Build what TVM lacks to use this backend's devices in this machine's Python; returns the library.

        Args:
            tell: Called with one line before it takes a while.

        Raises:
            InputError: TVM lacks nothing.
            BuildError: It cannot be built.
        """
        if not self.runtime:
            raise InputError(
                "TVM runs CPU kernels without an additional library", hint="pass a board with an accelerator to --board"
            )
        return build_plugin(self.runtime, tell)
