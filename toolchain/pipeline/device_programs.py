"""Our programs for a device: built when they are first needed, and then cached.

They are identified by a triple: that of the device's board type, or musl's; see `ConnectedDevice.triple`.
"""

from __future__ import annotations

import contextlib

from toolchain import architecture
from toolchain.native import programs
from toolchain.native.programs import Program
from toolchain.progress import Stages, stage


def building_runner(triple: str) -> contextlib.AbstractContextManager[None]:
    """Build the runner in the background during a block, in which `runner` waits for it.

    Raises:
        BuildError: There is none for the triple.
    """
    return programs.building(programs.RUNNER, triple, architecture.of_programs(triple).machine)


def runner(triple: str, stages: Stages) -> Program:
    return _program(programs.RUNNER, "runner", triple, stages)


def library(triple: str, stages: Stages) -> Program:
    """Build the library that applications link, or take it from the cache."""
    return _program(programs.LIBRARY, "library", triple, stages)


def _program(name: str, title: str, triple: str, stages: Stages) -> Program:
    with stages.timed("runner"):
        stages.tell(stage(f"preparing the {title} for {triple}"))
        return programs.build(name, triple, architecture.of_programs(triple).machine, stages.tell)
