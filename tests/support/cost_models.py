"""A model of what kernels cost that is a formula, for what asks one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import tvm

from toolchain.backends.base import Estimate
from toolchain.records.tasks import workload_hash


@dataclass
class FormulaCosts:
    """Takes a millisecond and up to sixteen more by a candidate's hash; one in eight spills, and one is refused."""

    name: str = "formula, 4 cores"
    identity: str = "formula 1"
    stamp: str = "modelled (formula 1)"
    obstacle: str = ""
    asked: list[bool] = field(default_factory=list)

    def of(self, module: tvm.IRModule) -> Estimate:
        number = int(workload_hash(module), 16)
        if number % 8 == 1:
            return Estimate(fault="the compiler refuses it")
        return Estimate(1.0 + number % 16, spills=3 if number % 8 == 2 else 0)

    def estimates(self, modules: Sequence[tvm.IRModule], *, spilling: bool = True) -> list[Estimate]:
        self.asked.append(spilling)
        return [self.of(module) for module in modules]
