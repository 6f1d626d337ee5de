"""The pool of boards in the shape of MetaSchedule's runner, so that TVM's own searches can use it."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import Any

from tvm.ir.utils import derived_object

from toolchain.errors import DeviceError, InputError
from toolchain.tuning._tvm import meta_schedule
from toolchain.tuning.measure import MeasurePool
from toolchain.tuning.trials import Measured, TensorArg, Trial


def as_runner(pool: MeasurePool) -> Any:
    """Return a `meta_schedule.runner.PyRunner` that measures on the boards of a pool.

    A candidate that fails has the board's words as its `error_msg`. If there is no board for too long, the future's
    result raises, and so does the search: it does not go on with zeros.

    Args:
        pool: The pool; it must stay open as long as the runner is used.
    """
    runners = meta_schedule().runner

    @derived_object
    class Runner(runners.PyRunner):  # type: ignore[misc, name-defined]
        def run(self, runner_inputs: list[Any]) -> list[Any]:
            return [_future(runners, pool.submit(_trial(one))) for one in runner_inputs]

    return Runner()


def _trial(given: Any) -> Trial:
    args = []
    for info in given.args_info:
        kind, dtype, shape = info.as_json()
        if kind != "TENSOR":
            raise InputError(f"a kernel takes an argument of the kind {kind}, and boards fill tensors only")
        args.append(TensorArg(str(dtype), tuple(int(size) for size in shape)))
    return Trial(Path(str(given.artifact_path)), tuple(args))


def _future(runners: Any, future: Future[Measured]) -> Any:
    def result() -> Any:
        try:
            found = future.result()
        except DeviceError as fault:  # TVM keeps nothing of an error but its text
            raise RuntimeError(f"{fault.message}\n{fault.details}") from fault
        if found.samples_s:
            return runners.RunnerResult(list(found.samples_s), None)
        return runners.RunnerResult(None, f"{found.cause} on {found.board}: {found.error}")

    return runners.RunnerFuture(future.done, result)
