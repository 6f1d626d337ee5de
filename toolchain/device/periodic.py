"""Run a release on its device at the rate of an application, for minutes or hours, until it ends or Ctrl-C.

The runner reads its standard input: it ends with a report when it gets a line, and also when the connection drops. The
processes of the load end with it.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
import time
from collections.abc import Callable
from pathlib import Path

from toolchain import interrupts, process, temporary, tensors
from toolchain.device import runner
from toolchain.device.installed import Installed
from toolchain.device.rate import Rate
from toolchain.device.runner import Plan, Run
from toolchain.errors import DeviceError
from toolchain.progress import Step, stage
from toolchain.shell import RemoteProcess

_PROGRESS = re.compile(r"periodic ([0-9]{1,18}) ([0-9]{1,18}) ([0-9]{1,18})\n")
_SPARE = 1 << 20  # bytes of headers of the outputs
_STOP_S = 60.0  # for the last run and the report


def run(installed: Installed, plan: Plan, rate: Rate, progress: Callable[[str], None]) -> Run:
    """Time a release back to back by a plan, then run it at a rate; the caller holds the lock.

    Ctrl-C during the runs at the rate ends them, and they are reported; a second one is raised.

    Raises:
        DeviceError: The model does not run, the device does not allow what the rate asks for, or it is lost.
        VerificationError: The device does not accept this release.
    """
    plan = installed.complete(dataclasses.replace(plan, rate=rate))
    manifest, shell = installed.release.manifest, installed.shell
    with installed.scratch() as folder, temporary.folder() as work:
        argv = installed.command(folder, plan)
        report = f"{folder}/report"
        script = f"umask 022; mkdir -p {shlex.quote(folder)} && {shlex.join(argv)} && cat {shlex.quote(report)}"
        line_s = runner.longest_s(plan, runner.weight(manifest)) + rate.period_s
        text = _Session(shell.start(script), rate, line_s, shell.name).report(progress)
        local = Path(work) / "outputs.safetensors"
        limit_bytes = _SPARE + sum(spec.bytes for spec in manifest.step_outputs) * max(plan.samples, 1)
        shell.pull(f"{folder}/outputs", local, max_bytes=limit_bytes)
        return runner.read(text, tensors.load(local), shell.name, plan)


class _Session:
    """A runner that reports its progress."""

    def __init__(self, running: RemoteProcess, rate: Rate, line_s: float, name: str) -> None:
        self._running, self._rate, self._line_s, self._name = running, rate, line_s, name
        self._began = self._stopped = False

    def report(self, progress: Callable[[str], None]) -> str:
        """Return the report of the runner, which has ended then."""
        end = time.monotonic() + self._rate.for_s + 2 * self._line_s + _STOP_S
        try:
            while match := _PROGRESS.fullmatch(line := self._next_line()):
                if not self._began:
                    progress(stage(f"running every {self._rate.period_s * 1e3:g} ms for {self._rate.for_s:g} s"))
                self._began = True
                runs, missed, elapsed_ms = map(int, match.groups())
                text = f"running at a rate, {missed} of {runs} beyond the deadline"
                progress(Step(text, min(elapsed_ms / 1e3, self._rate.for_s), self._rate.for_s, "s"))
                if time.monotonic() > end:
                    raise DeviceError(f"the runs on {self._name} do not end", hint="check the device and its clock")
        finally:
            code = self._running.close()
        if not line:
            runner.check_ended(self._name, process.Result(1 if code is None else code, "", self._running.stderr))
        if self._stopped:
            interrupts.answered()
        return line

    def _next_line(self) -> str:
        while True:
            try:
                return self._running.readline(_STOP_S if self._stopped else self._line_s)
            except KeyboardInterrupt as request:
                # SIGTERM and a second Ctrl-C end the command, and so does one before there is anything to report.
                if request.args or self._stopped or not self._began:
                    raise
                self._stopped = True
                self._running.write("stop\n")
