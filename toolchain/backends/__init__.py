"""The compiler backends: what is particular to one kind of processor, behind one protocol."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from toolchain.backends import cpu, mali, vta
from toolchain.backends._attributes import Cycles

if TYPE_CHECKING:
    import tvm

    from toolchain.board import Board

Choice = Mapping[str, Any]
"""A template of a backend with its settings, as records hold it."""


class Templates(Protocol):
    """The kernels that a backend writes itself, each of them in several ways."""

    def default(self, module: tvm.IRModule) -> tvm.IRModule:
        """Schedule kernels that are none of these, as they are where nothing was tuned."""

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
    def clock_mhz(self) -> float:
        """Clock of the accelerator."""

    def cycles(self, layer: str, choice: Choice | None) -> Cycles | None:
        """Return what a layer takes in a chosen way, or else in the likely fastest; None if others compute it.

        Raises:
            BuildError: It cannot be computed in that way.
        """


class Backend(Protocol):
    """What a backend module offers the compiler."""

    TEMPLATES: tuple[str, ...]
    """Names of the templates."""
    INT8: bool
    """Whether the accelerator computes int8 alone, so that a network of floats is quantized first. Its own template is
    then the first one."""

    def target(self, board: Board) -> tvm.target.Target:
        """Return the TVM code-generation target of a board."""

    def cpu_features(self, board: Board) -> tuple[str, ...]:
        """Return the /proc/cpuinfo flags without which the compiled code must not be run."""

    def templates(self, board: Board, without: Collection[str] = ()) -> Templates:
        """Return the kernels that the backend writes itself, but for those of some templates."""

    def space(self, meta_schedule: Any) -> Any:
        """Return the generator of design spaces for the kernels that no template computes.

        Args:
            meta_schedule: TVM's package of that name.
        """

    def lowered(self, module: tvm.IRModule, board: Board, without: Collection[str] = ()) -> tvm.IRModule:
        """Rewrite an imported Relax module into calls of kernels, which can be tuned one by one.

        Kernels that a template computes have the attribute `_attributes.LAYER` and no body yet; the others are fused
        TIR without a schedule.
        """

    def left_out(self, module: tvm.IRModule, board: Board, without: Collection[str] = ()) -> Sequence[str]:
        """Name the layers of an imported module that the accelerator leaves to the CPU, each with the cause."""

    def finished(
        self,
        module: tvm.IRModule,
        board: Board,
        choices: Mapping[str, Choice],
        without: Collection[str] = (),
    ) -> tvm.IRModule:
        """Write the kernels of a lowered module, and pack the weights as they want them.

        Args:
            module: What `lowered` returned; other kernels may have got a schedule since.
            board: The board type.
            choices: By layer, how to compute it; where nothing is said, in the way that is likely the fastest.
            without: Names of templates that must not be used.
        """

    def machine_model(self, board: Board) -> MachineModel | None:
        """Return a model of the board's accelerator; None if there is none."""

    def shipped(self, board: Board) -> str:
        """Name the tuning records that come with the toolchain and suit a board; empty if there are none."""

    def python_runtime(self, tell: Callable[[str], None]) -> Path:
        """Build what TVM lacks to use this backend's devices in this machine's Python; returns the library.

        Args:
            tell: Called with one line before it takes a while.

        Raises:
            InputError: TVM lacks nothing.
            BuildError: It cannot be built.
        """


BACKENDS: dict[str, Backend] = {"cpu": cpu, "mali": mali, "vta": vta}
"""CPUs through LLVM, x86-64 and Arm; Mali GPUs through OpenCL; the VTA accelerator through instruction streams."""
