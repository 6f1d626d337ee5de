"""Converts schedules to JSON and back: the decisions are stored, and MetaSchedule's postprocessing is repeated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm.s_tir.schedule import Trace, _ffi_api

from toolchain import board
from toolchain.backends import BACKENDS
from toolchain.records.lines import UNTUNED
from toolchain.records.metaschedule import meta_schedule

DEFAULT = UNTUNED
"""Instead of a trace: the backend's own schedule."""


def register_rules(module: tvm.IRModule, target: tvm.target.Target) -> None:
    """Register the schedule rules that a kernel names and TVM lacks, as rules that change nothing.

    MetaSchedule itself ignores an unknown rule, but with a warning on stderr for every design space.
    """
    schedule = tvm.s_tir.Schedule(module)
    blocks = [schedule.get(one) for one in schedule.get_child_blocks(schedule.get_sblock("root"))]
    rules = {str(one.annotations["schedule_rule"]) for one in blocks if "schedule_rule" in one.annotations}
    for name in (f"s_tir.meta_schedule.{key}.{rule}" for key in target.keys for rule in rules):
        if tvm_ffi.get_global_func(name, allow_missing=True) is None:
            tvm_ffi.register_global_func(name, lambda schedule, _block: [schedule])


def space_generator(target: tvm.target.Target) -> Any:
    """Return the generator of design spaces: backends that compile for targets of one kind share it."""
    name = next(name for name, kind in board.backends().items() if kind == target.kind.name)
    return BACKENDS[name].space(meta_schedule())


def as_json(schedule: Any) -> list[Any]:
    """Return the decisions of a schedule in the form of MetaSchedule's traces: instructions and decisions.

    The postprocessing is left out: it follows from the decisions, and its index maps have no stable form as JSON.
    """
    plain: list[Any] = _plain(_ffi_api.TraceAsJSON(schedule.trace, True))  # noqa: FBT003 - positional-only in TVM
    return plain


def _plain(value: Any) -> Any:
    if isinstance(value, (tvm.tirx.IntImm, tvm.tirx.FloatImm)):
        return value.value
    if isinstance(value, str):
        return str(value)
    return [_plain(item) for item in value] if isinstance(value, Sequence) else value


class Rebuilder:
    """Rebuilds schedules of one kernel."""

    def __init__(self, module: tvm.IRModule, target: tvm.target.Target) -> None:
        self._module = module
        # Postprocessors use the context that they were created for.
        self._context = meta_schedule().TuneContext(
            mod=module, target=target, space_generator=space_generator(target), num_threads=1, rand_state=1
        )

    def from_json(self, trace: Any) -> Any:
        """Return the schedule of a trace as JSON, postprocessing included; None if it does not fit the kernel."""
        return self._rebuild(lambda schedule: Trace.apply_json_to_schedule(trace, schedule))

    def from_trace(self, trace: Any) -> Any:
        """Return the schedule of a Trace object without its own postprocessing; None if it does not fit."""
        return self._rebuild(lambda schedule: trace.apply_to_schedule(schedule, remove_postproc=True))

    def _rebuild(self, step: Any) -> Any:
        schedule = tvm.s_tir.Schedule(self._module, seed=1, debug_mask=0)
        try:
            step(schedule)
            schedule.enter_postproc()
            fits = all(postproc.apply(schedule) for postproc in self._context.space_generator.postprocs)
        except (RuntimeError, ValueError, TypeError, IndexError, KeyError):  # steps of a schedule raise any of these
            return None
        return schedule if fits else None
