"""Mesa's compiler as the cost model of `build`, `tasks` and `tune`, which know nothing of Mali."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import tvm
from tvm.s_tir.transform import RemoveWeightLayoutRewriteBlock

from toolchain.backends.base import Estimate, Tell
from toolchain.backends.mali.cost import kernel_cost, network
from toolchain.backends.mali.cost.compiler import Gpu, gpu
from toolchain.backends.mali.cost.kernel_cost import Compiler, KernelCost
from toolchain.backends.mali.cost.network import Costs, Launch
from toolchain.backends.mali.cost.root import root
from toolchain.board import Board
from toolchain.board import Gpu as BoardGpu
from toolchain.errors import BuildError, InputError
from toolchain.report import Section, Table, Text

_ENTRY = "main"
_FAULT_LETTERS = 300


@dataclass(frozen=True)
class Found:
    """What the kernels of a network cost, as commands show it."""

    costs: Costs

    def document(self) -> dict[str, Any]:
        """Return them for --json."""
        return self.costs.document()

    def shown(self) -> list[str | Table]:
        """Return what a person is shown."""
        return network.lines([self.costs]) if self.costs.rows else [self._nothing]

    def sections(self) -> list[Section]:
        """Return what a page has of them."""
        if not self.costs.rows:
            return [Section(f"{self.costs.name} on {self.costs.gpu.name}", [Text(self._nothing)])]
        return [network.section(self.costs, summed=True)]

    def refusal(self) -> BuildError | None:
        """Return what a command ends with as the compiler refuses kernels; None if it takes all."""
        return network.refusal([self.costs])

    @property
    def _nothing(self) -> str:
        return f"{self.costs.name} has no GPU kernels: the whole model runs on the CPU; {self.costs.stamp}"


@dataclass(frozen=True)
class Model:
    """What kernels cost on a board's GPU.

    Attributes:
        compiler: Mesa's, for that GPU.
        board: The GPU's cores and clock.
        target: What kernels are lowered for.
    """

    compiler: Compiler
    board: BoardGpu
    target: tvm.target.Target

    @property
    def name(self) -> str:
        """The GPU, its cores and clock."""
        return name_of(self.board)

    @property
    def identity(self) -> str:
        """Which compiler, its version first, and which formula: others make other estimates."""
        return f"{self.compiler.identity}, formula {network.FORMULA}"

    @property
    def stamp(self) -> str:
        """What every figure is marked with."""
        return self.compiler.stamp

    @property
    def obstacle(self) -> str:
        """Why candidates cannot be judged by it; empty if they can."""
        kind = self.compiler.gpu
        return (
            ""
            if kind.judged
            else f"Mesa's compiler for {kind.title} is weak: its spills do not apply to Arm's compiler"
        )

    def estimates(self, modules: Sequence[tvm.IRModule], *, spilling: bool = True) -> list[Estimate]:
        """Estimate scheduled kernels, each the function `main` of a module.

        Args:
            modules: The modules; one may become several kernels on the GPU.
            spilling: Whether to estimate the time of kernels that spill, too.
        """
        lowered = [_lowered(module, self.target) for module in modules]
        each = [candidate for candidate in lowered if not isinstance(candidate, str)]
        kernels = [launch.kernel for launches in each for launch in launches]
        costs = iter(kernel_cost.costs(self.compiler, kernels, spilling=spilling))
        return [
            Estimate(fault=candidate)
            if isinstance(candidate, str)
            else self._estimate([(launch, next(costs)) for launch in candidate], spilling=spilling)
            for candidate in lowered
        ]

    def _estimate(self, launches: Sequence[tuple[Launch, KernelCost]], *, spilling: bool) -> Estimate:
        spills = sum(cost.spills for _, cost in launches)
        silent = next((cost for _, cost in launches if not cost.answered), None)
        if silent is not None:
            return Estimate(fault=silent.fault[:_FAULT_LETTERS], answered=False)
        fault = next((reason for launch, cost in launches if (reason := _fault(launch, cost))), "")
        if fault or (spills and not spilling):
            return Estimate(None, spills, fault)
        times = [network.estimated_ms(launch, cost, self.compiler.gpu, self.board) for launch, cost in launches]
        known_times = [time for time in times if time is not None]
        return Estimate(sum(known_times) if len(known_times) == len(times) else None, spills)

    def network(self, name: str, module: tvm.IRModule) -> Found:
        """Return what the kernels of a scheduled Relax module cost."""
        return Found(network.network(name, network.launches(module, self.target), self.compiler, self.board))


def _lowered(module: tvm.IRModule, target: tvm.target.Target) -> tuple[Launch, ...] | str:
    """Return the kernels of a candidate as they are launched, or why it cannot be lowered."""
    try:
        plain = RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(module)
        return network.kernels_of(plain[_ENTRY], target) or "it has no GPU kernels"
    except Exception as fault:  # noqa: BLE001 - the compiler's passes raise errors of any class
        return f"{type(fault).__name__}: {fault}".strip()[-_FAULT_LETTERS:]


def _fault(launch: Launch, cost: KernelCost) -> str:
    """Say why a kernel would not run on the GPU; empty if it would."""
    if cost.statistics is None:
        return cost.fault[:_FAULT_LETTERS]
    most = cost.statistics.work_group
    if most and launch.group > most:
        return f"work-groups of {launch.group} work-items, but the machine code has registers for {most}"
    return ""


def name_of(board_gpu: BoardGpu) -> str:
    """Return the name by which estimates for a board's GPU differ from others."""
    return f"{board_gpu.name}, {board_gpu.cores} cores, {board_gpu.clock_mhz} MHz"


def of_board(board: Board, target: tvm.target.Target, tell: Tell) -> Model:
    """Return the model of a board's GPU; Mesa's compiler is fetched if it is not here.

    Args:
        board: The board type, resolved.
        tell: Gets a line before each long step, and about its progress.

    Raises:
        InputError: The board file names no GPU.
        BuildError: The compiler cannot be fetched, or not be run here.
    """
    if board.gpu is None:
        raise InputError(
            f"board {board.name} has no [gpu] in its file, so the cost of kernels is unknown",
            hint="use a board whose file has [gpu], such as rk3588",
        )
    kind: Gpu = gpu(board.gpu.name)
    return Model(replace(Compiler(root(tell), kind), tell=tell), board.gpu, target)
