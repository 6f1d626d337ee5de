"""The backend of CPUs through LLVM, from which those of boards with an accelerator derive, and its templates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, assert_never

import tvm
from tvm import relax

from toolchain import architecture
from toolchain.architecture import Isa
from toolchain.backends.base import EXAMPLES, Backend, Choice, Templates
from toolchain.backends.cpu import graph, kernels, precision, schedule
from toolchain.backends.cpu.graph import linear_order, tables
from toolchain.backends.cpu.graph.rewriting import fold_except_weights
from toolchain.backends.cpu.kernels import Packing
from toolchain.backends.cpu.layers import (
    Attention,
    Conv,
    Dense,
    Layer,
    Pool,
    from_json,
    precision_of,
    task_of,
    to_json,
)
from toolchain.backends.cpu.machine import (
    Machine,
    check_float16,
    cpu_features,
    llvm_target,
    machine,
    with_bfloat16,
    with_float16,
)
from toolchain.backends.graph import fusion
from toolchain.board import Board
from toolchain.errors import InputError
from toolchain.models.converters.sequence.recurrence import Recurrence

# --- templates -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CpuTemplates:
    """The templates' kernels for one processor.

    Attributes:
        machine: The processor.
        without: Names of templates that are left out.
    """

    machine: Machine
    without: frozenset[str] = frozenset()

    def candidates(self, layer: str) -> list[dict[str, Any]]:
        """List the ways to compute a layer, the one that is likely the fastest first."""
        ranked = kernels.candidates(from_json(layer), self.machine, without=self.without)
        return [candidate.choice.document() for candidate in ranked]

    def variants(self, layer: str) -> list[dict[str, Any]]:
        """List further ways, which only a measurement can tell from those."""
        ranked = kernels.variants(from_json(layer), self.machine, without=self.without)
        return [candidate.choice.document() for candidate in ranked]

    def module(self, layer: str, choice: Mapping[str, Any]) -> tvm.IRModule | None:
        """Return the kernel of a layer as the function `main`; None if it cannot be written in that way any more."""
        described = from_json(layer)
        parsed = self.read_choice(described, choice)
        if parsed is None:
            return None
        function = kernels.kernel(described, self.machine, parsed).with_attr("global_symbol", "main")
        if examples := kernels.examples(described, self.machine, parsed):
            function = function.with_attr(
                EXAMPLES, {str(n): tvm.runtime.tensor(array) for n, array in examples.items()}
            )
        return tvm.IRModule({"main": function})

    def fits(self, layer: str, choice: Mapping[str, Any]) -> bool:
        """Whether a recorded choice can still compute a layer."""
        return self.read_choice(from_json(layer), choice) is not None

    def read_choice(self, layer: Layer, choice: Mapping[str, Any]) -> kernels.Choice | None:
        """Read a choice for a layer; None if it is unknown, left out, or does not fit."""
        parsed = kernels.choice(dict(choice))
        if parsed is None or kernels.is_left_out(parsed.template, self.without) or not kernels.fits(layer, parsed):
            return None
        return parsed

    def operator(self, layer: str) -> str:
        """Name what a layer does."""
        described = from_json(layer)
        precision = precision_of(described)
        prefix = f"{precision}_" if precision else ""
        if isinstance(described, (Attention, Dense, Recurrence)):
            return prefix + type(described).__name__.lower()
        if isinstance(described, Conv):
            if described.is_depthwise:
                return f"{prefix}depthwise_conv2d"
            return f"{prefix}conv2d" if described.groups == 1 else f"{prefix}group_conv2d"
        if isinstance(described, Pool):
            return f"{prefix}{'avg' if described.reduce == 'mean' else 'max'}_pool2d"
        return f"{prefix}map"

    def gflop(self, layer: str) -> float:
        """Return billions of floating-point operations of one call."""
        return from_json(layer).flops / 1e9


# --- the backend -----------------------------------------------------------------------------------------------------


_BITS = {"int8": 8, "int4": 4}
_SAME_PACKING = 1.05  # times the least estimated cost: what a layer may take longer so that its weights are stored once
_FLOAT16_FEATURES = ("fphp", "asimdhp")  # Linux's names for arithmetic in half precision, of numbers and of vectors


class Cpu(Backend):
    """CPUs: x86-64, Arm and RISC-V."""

    template_names = (*kernels.NAMES, kernels.LARGER_WEIGHTS)
    # The second leaves out what transforms weights in each run as well, for which threads need memory.
    larger = ((kernels.LARGER_WEIGHTS,), (kernels.LARGER_WEIGHTS, "winograd"))
    shipped_by_lanes: ClassVar[Mapping[int, str]] = {16: "x86-64-v4", 8: "x86-64-v3"}
    """Names of the tuning records that come with the toolchain, by the floats of a vector register."""

    @cached_property
    def host(self) -> tvm.target.Target:
        """The LLVM target of the board's CPU, without an accelerator.

        Raises:
            InputError: LLVM does not know the CPU, or the board file asks for bfloat16, which is for x86-64 CPUs alone,
                or for rounded weights, which are for CPUs.
        """
        if self.board.target.bfloat16:
            _check_bfloat16(self.board)
        if self.board.target.weights and self.board.backend != "cpu":
            raise InputError(
                f"board {self.board.name} does not compute with weights of {self.board.target.weights}: only CPUs do",
                hint="leave --weights out",
            )
        if self.board.target.half_sums and self.board.backend == "cpu":
            raise InputError(
                f"board {self.board.name} is a CPU, which always sums up in half precision with --float16",
                hint="use --float16 instead of --half-sums",
            )
        target = llvm_target(self.board)
        if self._in_float16:
            check_float16(target, self.board.name)
        return target

    @cached_property
    def machine(self) -> Machine:
        """The board's CPU, with the cores that threads run on."""
        described = machine(self.host)
        described = replace(described, cores=min(self.threads or described.cores, described.cores))
        if self._in_float16:
            return with_float16(described)
        if self.board.target.weights:
            return replace(described, weight_bits=_BITS[self.board.target.weights])
        return with_bfloat16(described, self.host) if self.board.target.bfloat16 else described

    @property
    def _in_float16(self) -> bool:
        """Whether the CPU computes in float16; other processors of a board may do so without it."""
        return self.board.target.float16 and self.board.backend == "cpu"

    @property
    def target(self) -> tvm.target.Target:
        return self.host

    @property
    def cpu_features(self) -> tuple[str, ...]:
        """The /proc/cpuinfo flags that the compiled code requires."""
        features = cpu_features(self.board)
        return tuple(dict.fromkeys((*features, *_FLOAT16_FEATURES))) if self._in_float16 else features

    @cached_property
    def cpu_templates(self) -> CpuTemplates:
        """The CPU's templates, without those that the user excludes."""
        return CpuTemplates(self.machine, self.without)

    @property
    def templates(self) -> Templates:
        return self.cpu_templates

    @staticmethod
    def space(meta_schedule: Any) -> Any:
        """Return TVM's own generator of design spaces, by name, as those of the target import intrinsics."""
        return meta_schedule.space_generator.PostOrderApply(sch_rules="llvm", postprocs="llvm", mutator_probs="llvm")

    def lower(self, module: tvm.IRModule) -> tvm.IRModule:
        """Rewrite an imported Relax module into calls of kernels; fused ones say which arguments are weights.

        Raises:
            InputError: The board file asks for half precision, and the CPU has none, or the model is quantized.
        """
        if self._in_float16 and precision.is_quantized(module):
            raise InputError(
                "a quantized model does not compute in half precision",
                hint="leave --float16 out; the model runs in int8, which is faster",
            )
        if not self.machine.dot:
            return self.lowered_floats(module)
        return self._in_kernels(fold_except_weights(self._prepared(module)), self.machine)

    def lowered_floats(self, module: tvm.IRModule) -> tvm.IRModule:
        """Rewrite a module as `lower` does, but compute in floats what its file has quantized.

        Floats hold the integers of a quantized network exactly: results are those of the file, to the bit.
        """
        folded = fold_except_weights(self._prepared(module), in_bytes=False)
        return self._in_kernels(folded, replace(self.machine, dot=""))

    def _prepared(self, module: tvm.IRModule) -> tvm.IRModule:
        transform = relax.transform
        with self.host:
            prepared: tvm.IRModule = tvm.transform.Sequential(
                [transform.DecomposeOpsForInference(), transform.CanonicalizeBindings()]
            )(module)
        return prepared

    def _in_kernels(self, module: tvm.IRModule, machine: Machine) -> tvm.IRModule:
        transform = relax.transform
        if machine.weight_bits:
            module = tables.round_tables(module)
        with self.host:
            blocked = graph.insert_stand_ins(linear_order.reorder(module), machine, self.without)
            first = [transform.LegalizeOps(), transform.AnnotateTIROpPattern(), transform.FoldConstant()]
            fused = fusion.fuse(tvm.transform.Sequential(first)(blocked))
            rewritten: tvm.IRModule = transform.AttachAttrLayoutFreeBuffers()(fused)
        return rewritten

    def schedule(self, module: tvm.IRModule) -> tvm.IRModule:
        """Schedule the kernels that no template computes, as they are where nothing was tuned."""
        return schedule.schedule(module, self.host, self.machine.float32_lanes)

    def apply_choices(self, module: tvm.IRModule, choices: Mapping[str, Choice]) -> tvm.IRModule:
        """Write the kernels of a lowered module, pack the weights as they want them, and schedule the rest."""
        defaults: dict[str, kernels.Choice] = {}  # by task: layers that differ in their places alone have the same

        def choose(layer: Layer) -> kernels.Choice:
            task = to_json(task_of(layer))
            choice = self.cpu_templates.read_choice(layer, choices[task]) if task in choices else None
            if choice is None and task not in defaults:
                defaults[task] = kernels.default(layer, self.machine, without=self.without)
            return choice or defaults[task]

        return self.schedule(graph.emit_kernels(module, self.machine, choose))

    def common_choices(self, layers: Sequence[str]) -> Sequence[Choice] | None:
        """Choose the packing that most of the layers can use without being clearly slower, and so on for the others."""
        described = [from_json(layer) for layer in layers]
        ways = [kernels.by_packing(layer, self.machine, without=self.without) for layer in described]
        if not all(ways):
            return None
        limits = [_SAME_PACKING * min(candidate.cost for candidate in way.values()) for way in ways]
        chosen: dict[int, Choice] = {}
        while len(chosen) < len(ways):
            covered: dict[Packing, list[int]] = {}  # by packing, the layers without a choice that can use it
            for number, (way, limit) in enumerate(zip(ways, limits, strict=True)):
                for packing, candidate in way.items():
                    if number not in chosen and candidate.cost <= limit:
                        covered.setdefault(packing, []).append(number)
            # Of those for as many layers, the one whose slowest layer loses the least.
            best = min(
                covered,
                key=lambda packing: (
                    -len(covered[packing]),
                    max(ways[number][packing].cost / limits[number] for number in covered[packing]),
                    packing,
                ),
            )
            chosen |= {number: ways[number][best].choice.document() for number in covered[best]}
        return [chosen[number] for number in range(len(ways))]

    def remarks(self, module: tvm.IRModule) -> Sequence[str]:
        """Count the kernels with products in a reduced precision, and those whose weights are of few bits."""
        reduced = "bfloat16" if self.machine.bfloat16 else "float16" if self.machine.float16 else ""
        packed = precision.summary_of_weights(module, is_requested=bool(self.machine.weight_bits))
        return [*([precision.summary(module, reduced)] if reduced else ()), *packed]

    def on_cpu(self, module: tvm.IRModule) -> tvm.IRModule:
        """Return scheduled kernels in a reduced precision without the instructions for it.

        Raises:
            InputError: Other kernels need instructions that this machine lacks.
        """
        if self.machine.float16:
            return precision.without_target(module)
        if self.machine.weight_bits:
            return precision.on_any_processor(module, self.machine, self.host)
        return precision.on_any_x86(module, self.host)

    @property
    def shipped(self) -> str:
        """Name of the tuning records that come with the toolchain: those of the same vector instructions."""
        isa = architecture.of_triple(self.board.triple).isa
        match isa:
            case Isa.ARM | Isa.RISCV:
                return ""
            case Isa.X86:
                return self.shipped_by_lanes.get(self.machine.lanes, "")
            case _:
                assert_never(isa)


def _check_bfloat16(board: Board) -> None:
    if board.backend != "cpu" or architecture.of_triple(board.triple).isa is not Isa.X86:
        raise InputError(
            f"board {board.name} does not compute in bfloat16: only the kernels for x86-64 CPUs do",
            hint="leave --bfloat16 out",
        )
