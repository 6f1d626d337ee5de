"""A survey of a real device in one run: everything that only a device can show, in an anonymous report.

Each step does what another command does, too. A step that fails is recorded, and the next one follows.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import secrets
import shlex
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import toolchain
from toolchain import bundle as bundles
from toolchain import files, outputs, temporary
from toolchain.board import Board
from toolchain.compile.request import BuildRequest
from toolchain.device import runner, verification
from toolchain.device.connected import ConnectedDevice, Connection
from toolchain.device.deploy import Settings
from toolchain.device.installed import DeviceRelease, Installed, installed_temporarily
from toolchain.device.lock import Owner
from toolchain.device.runner import Plan
from toolchain.devices import find_device
from toolchain.errors import InputError, ToolchainError
from toolchain.farm import boards as farm_boards
from toolchain.farm.boards import BoardRequest
from toolchain.models.request import Model
from toolchain.pipeline import anonymous, device_programs
from toolchain.pipeline.deploy import deploy_bundle
from toolchain.pipeline.report import MACHINE_FACTS
from toolchain.pipeline.source import BundleSource
from toolchain.progress import Progress, Stages
from toolchain.records import SHIPPED
from toolchain.rpc import hardware
from toolchain.tuning.report import TuneReport

NETWORKS = ("mlp", "squeezenet_v1.1", "mobilenet", "resnet-18")  # by default
TUNED = 2  # this many of them, from the first on, are tuned a little

SCHEMA_VERSION = 1
_JSON, _MARKDOWN = "report.json", "report.md"
_HEADING = "## Survey of "
_ROUNDS = 5
_CACHE = "XDG_CACHE_HOME"
_KIB_PER_MIB = 1024
_MAX_WIDTH = 80
_LARGE = 1000.0
_HINT = "run that step's command alone to keep its files: see `toolchain tune --help`, `toolchain build --help`"

Figure = float | int | str | bool | None
Figures = Mapping[str, Figure]  # the results of a step by name


@dataclass(frozen=True)
class SurveyRequest:
    """What is surveyed."""

    boards: BoardRequest
    tune: Callable[[str, Path], TuneReport]  # tunes a network, with records in a file
    networks: tuple[str, ...] = NETWORKS  # Zoo names or paths of ONNX files
    budget_s: float = 10.0  # seconds to time each network
    toolchain: str = ""  # where libraries are linked; empty means as the board file says

    @property
    def board(self) -> Board:
        return self.boards.board


@dataclass(frozen=True)
class Outcome:
    """The result of one step."""

    step: str
    network: str  # empty for a step without one
    seconds: float
    figures: Figures  # as far as the step came
    fault: ToolchainError | None = None  # why it failed; None if it did not

    def document(self) -> dict[str, Any]:
        fault = self.fault and {
            "code": self.fault.exit_code,
            "message": self.fault.message,
            "details": self.fault.details,
        }
        fields = {"step": self.step, "network": self.network, "seconds": round(self.seconds, 1)}
        return {**fields, "ok": self.fault is None, "figures": dict(self.figures), "fault": fault}


@dataclass(frozen=True)
class Survey:
    """A survey, finished or in progress."""

    board: str
    emulated: bool  # whether the times are an emulator's
    versions: Mapping[str, str]  # versions of the packages that made it
    outcomes: tuple[Outcome, ...]

    @property
    def fault(self) -> ToolchainError | None:
        """The fault of the first step that failed; None if all is well."""
        return next((outcome.fault for outcome in self.outcomes if outcome.fault), None)

    def document(self) -> dict[str, Any]:
        """Return it as report.json holds it."""
        steps = [outcome.document() for outcome in self.outcomes]
        fields = {"board": self.board, "emulated": self.emulated, "versions": dict(self.versions)}
        return {"schema_version": SCHEMA_VERSION, **fields, "steps": steps}

    def table(self) -> str:
        """Return it as Markdown, for an issue."""
        failed = sum(outcome.fault is not None for outcome in self.outcomes)
        mark = " (emulated: times do not apply to a real board)" if self.emulated else ""
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        lines = [
            f"{_HEADING}{self.board}{mark}",
            "",
            f"{versions}. {len(self.outcomes)} steps, {failed} failed.",
            "",
        ]
        lines += ["| step | network | result | figures | s |", "|---|---|---|---|---|"]
        for outcome in self.outcomes:
            verdict = f"FAILED ({outcome.fault.exit_code})" if outcome.fault else "ok"
            texts = [f"{name} {_figure_text(value)}" for name, value in outcome.figures.items()]
            figures = ", ".join(texts).replace("|", "/")
            lines.append(f"| {outcome.step} | {outcome.network} | {verdict} | {figures} | {outcome.seconds:.0f} |")
        for outcome in self.outcomes:
            if outcome.fault:
                title = f"{outcome.step} {outcome.network}".strip()
                lines += ["", f"### {title}", "", "```", outcome.fault.message, outcome.fault.details.rstrip(), "```"]
        return "\n".join([*lines, ""])


def _figure_text(value: Figure) -> str:
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= _LARGE else f"{value:.4g}"
    return "-" if value is None else textwrap.shorten(str(value), _MAX_WIDTH, placeholder="...")


# --- one run ---------------------------------------------------------------------------------------------------------


@dataclass
class _Job:
    """A survey in progress; `work` is a folder for bundles and records."""

    request: SurveyRequest
    work: Path
    progress: Progress
    names: set[str] = field(default_factory=set)
    emulated: bool = False
    has_float16: bool = False

    @contextlib.contextmanager
    def connect(self) -> Iterator[ConnectedDevice]:
        boards = self.request.boards
        entry = find_device(boards.board, boards.host or None, boards.devices)
        entry = dataclasses.replace(entry, run=None)  # the device's application is left alone
        self.names |= anonymous.identifying_names(entry.host)
        self.emulated = boards.board.emulated or entry.emulated
        with Connection(boards.board, entry, boards.ssh, boards.root, self.progress, boards.patience).open() as device:
            self.names |= anonymous.identifying_names(device.name)
            yield device

    def folder(self, network: str, kind: str = "") -> Path:
        """Return the folder of a network's bundle or records; its own path may be anywhere."""
        return self.work / f"{kind or 'bundle'}-{self.request.networks.index(network)}"


@dataclass(frozen=True)
class _Step:
    name: str
    network: str
    action: Callable[[], Figures]


def _plan(job: _Job) -> list[_Step]:
    """List the steps; a new step is one line here."""
    request, first = job.request, job.request.networks[0]
    accelerated = request.board.backend != "cpu"
    return [
        _Step("device", "", partial(_device, job)),
        _Step("hardware", "", partial(_hardware, job)),
        *(_Step("deploy", network, partial(_deploy, job, network)) for network in request.networks),
        *(_Step("float16", network, partial(_float16, job, network)) for network in request.networks if accelerated),
        _Step("start", request.networks[-1], partial(_start, job, request.networks[-1])),
        _Step("steadiness", first, partial(_steadiness, job, first)),
        *(_Step("tune", network, partial(_tune, job, network)) for network in request.networks[:TUNED]),
    ]


def run(request: SurveyRequest, folder: Path, progress: Progress) -> Survey:
    """Survey a device; report.json and report.md are in the folder, and grow with each step.

    Steps that fail are part of the survey.

    Raises:
        InputError: There is no such device, or the folder cannot be written or has other reports in it.
    """
    find_device(request.board, request.boards.host or None, request.boards.devices)
    _check_folder(folder)
    outcomes: list[Outcome] = []
    with temporary.folder() as work:
        job = _Job(request, Path(work), progress, anonymous.identifying_names(request.boards.host))
        survey = _write(job, outcomes, folder)
        for step in _plan(job):
            progress(f"--- {step.name} {step.network}".rstrip())
            outcomes.append(_run_step(job, step))
            fault = outcomes[-1].fault
            progress(f"FAILED: {fault.message}" if fault else "ok")
            survey = _write(job, outcomes, folder)
    return survey


def _run_step(job: _Job, step: _Step) -> Outcome:
    start = time.monotonic()
    try:
        figures, fault = step.action(), None
    except ToolchainError as caught:
        figures, fault = {}, _anonymize(job, caught)
    except (RuntimeError, OSError, ValueError, TypeError, LookupError) as caught:
        # A fault of ours or of TVM's must not cost the owner of a board the other steps.
        figures, fault = {}, _anonymize(job, ToolchainError(f"internal error: {type(caught).__name__}: {caught}"))
    return Outcome(step.name, Path(step.network).name, time.monotonic() - start, figures, fault)


def _anonymize(job: _Job, fault: ToolchainError) -> ToolchainError:
    hint = _HINT if str(job.work) in fault.hint else fault.hint  # files of the survey are gone afterwards
    message, details, hint = (anonymous.redact(job.names, text) for text in (fault.message, fault.details, hint))
    return type(fault)(message, details=details, hint=hint)


def _check_folder(folder: Path) -> None:
    """Make the folder, and check that only reports of an earlier survey will be replaced in it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise files.unwritable(folder, fault) from fault
    outputs.check_file(folder / _JSON, "a survey", _foreign_json)
    outputs.check_file(folder / _MARKDOWN, "a survey", _foreign_markdown)


def _foreign_json(path: Path) -> str:
    try:
        document = files.read_json(path)
    except InputError as fault:
        return fault.message
    return "" if isinstance(document, dict) and "steps" in document else "it does not contain the steps of a survey"


def _foreign_markdown(path: Path) -> str:
    with path.open("rb") as stream:
        return "" if stream.read(len(_HEADING)) == _HEADING.encode() else f"it does not begin with {_HEADING!r}"


def _write(job: _Job, outcomes: Sequence[Outcome], folder: Path) -> Survey:
    versions = {"toolchain": toolchain.__version__, "tvm": importlib.metadata.version("apache-tvm")}
    survey = Survey(job.request.board.name, job.emulated, versions, tuple(outcomes))
    files.write_atomic(folder / _JSON, files.canonical_json(survey.document()))
    files.write_atomic(folder / _MARKDOWN, survey.table().encode())
    return survey


# --- the steps -------------------------------------------------------------------------------------------------------


def _device(job: _Job) -> Figures:
    with job.connect() as device:
        facts = device.store.facts()
    return {name: getattr(facts, name) for name in MACHINE_FACTS}


def _hardware(job: _Job) -> Figures:
    """Ask over RPC; if the farm serves several devices of the type, the first one answers."""
    with farm_boards.open_boards(job.request.boards, job.progress) as boards:
        description, notes = hardware.examine(job.request.board, boards.places[0])
    if description is None:
        return {"server": "TVM's own, which does not describe its hardware"}
    caches = {f"{name}_kib": size for name, size in description.cache_kib.items()}
    accelerator = dataclasses.asdict(description.accelerator) if description.accelerator else {}
    job.has_float16 = accelerator.get("float16", False)
    figures: dict[str, Figure] = {"cpus": description.cpus, **caches, **accelerator}
    return {**figures, "notes": "; ".join(notes).replace(boards.places[0].name, "the device") or None}


def _float16(job: _Job, network: str) -> Figures:
    if not job.has_float16:
        return {"left out": "the device does not compute in half precision, or does not report it"}
    return _deploy(job, network, job.request.board.with_precision(float16=True))


def _deploy(job: _Job, network: str, board: Board | None = None) -> Figures:
    source = bundle_source(job.request, network, job.progress, board)
    with job.connect() as connected:
        triple = connected.triple
    with device_programs.building_runner(triple):
        bundle = source.build(job.folder(network, "float16" if board else ""))
        program = device_programs.runner(triple, source.stages)
    with job.connect() as connected:
        device = dataclasses.replace(connected, board=source.request.board)  # perhaps its type in half precision
        report = deploy_bundle(bundle, program, device, Settings(job.request.budget_s), source.stages)
    latency, run = report.measurement.latency, report.measurement.run
    difference = report.difference
    return {
        "median_ms": latency.median,
        "p90_ms": latency.p90,
        "min_ms": latency.min,
        "runs": len(latency.samples),
        "first_run_ms": run.warmup_ns[0] / 1e6,
        "load_ms": run.load_ms,
        "peak_rss_mib": run.peak_rss_kib / _KIB_PER_MIB,
        "max_rel_diff": difference.max_rel if difference else None,
        "tolerance": difference.tolerance if difference else None,
        "threads": run.threads,
        "build_s": sum(report.stages.get(name, 0.0) for name in ("import", "reference", "compile")),
        "warnings": "; ".join(report.measurement.warnings) or None,
    }


def _start(job: _Job, network: str) -> Figures:
    """Start a network twice: first with an empty cache, then with the kernels compiled by the first start."""
    with _install(job, network) as release:
        device = release.release.device
        folder = f"{device.store.root}/run/cache-{secrets.token_hex(8)}"
        try:
            runs = [release.run(runner.SMOKE, {_CACHE: folder}) for _ in range(2)]
        finally:
            device.shell.run(f"rm -rf {shlex.quote(folder)}", check=False)
    first, second = (run.load_ms + run.warmup_ns[0] / 1e6 for run in runs)
    return {"first_start_ms": first, "second_start_ms": second, "ratio": first / second}


def _steadiness(job: _Job, network: str) -> Figures:
    """Time a network several times, each in a process of its own."""
    plan = Plan(job.request.budget_s / _ROUNDS, warmup_runs=1)
    with _install(job, network) as release:
        runs = [release.run(plan) for _ in range(_ROUNDS)]
    medians = [sorted(run.samples_ns)[len(run.samples_ns) // 2] / 1e6 for run in runs]
    spread = 100 * (max(medians) / min(medians) - 1)
    return {"rounds": _ROUNDS, "lowest_median_ms": min(medians), "highest_median_ms": max(medians), "spread_%": spread}


def _tune(job: _Job, network: str) -> Figures:
    report = job.request.tune(network, job.folder(network, "records"))
    ok = report.causes.get("ok", 0)
    first = report.points[0].estimated_s if report.points else None
    return {
        "trials": report.trials,
        "valid_%": 100 * ok / report.trials if report.trials else 0.0,
        "failed": ", ".join(f"{cause} {number}" for cause, number in report.failed.items()) or None,
        "s_per_trial": report.seconds / report.trials if report.trials else None,
        "tasks": len(report.tasks),
        "tasks_measured": sum(row.best_s is not None for row in report.tasks),
        "best_gflops": max((row.gflops for row in report.tasks if row.gflops), default=None),
        "first_estimate_ms": first and first * 1e3,
        "best_estimate_ms": report.estimated_s and report.estimated_s * 1e3,
    }


def bundle_source(request: SurveyRequest, network: str, progress: Progress, board: Board | None = None) -> BundleSource:
    """Return the source of a network's bundle, for the board type of the survey or a variant of it."""
    model = Model(network)
    # Only shipped records: with this machine's own ones, the results could not be reproduced elsewhere.
    build = BuildRequest(model, board or request.board, progress, request.toolchain, Path(SHIPPED))
    return BundleSource(build, Stages(progress))


@contextlib.contextmanager
def _install(job: _Job, network: str) -> Iterator[Installed]:
    """Install a network on the device for the time of a block, in which nobody else can deploy."""
    source, folder = bundle_source(job.request, network, job.progress), job.folder(network)
    bundle = bundles.load(folder) if (folder / bundles.MANIFEST).is_file() else source.build(folder)
    samples = verification.samples_of(bundle)
    with job.connect() as device:
        program = device_programs.runner(device.triple, source.stages)
        release = DeviceRelease.of_bundle(bundle, program, device)
        with (
            device.store.lock(Owner.here("survey")),
            installed_temporarily([(release, samples.inputs)]) as (installed,),
        ):
            yield installed
