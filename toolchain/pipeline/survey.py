"""What only a real device can show, found out in one run and written down without a word about whose device it is.

Each step is one thing that other commands do, too. One that fails is recorded, and the next one follows.
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
from toolchain.compile.request import BuildRequest, Tell
from toolchain.device import runner, verification
from toolchain.device.connected import ConnectedDevice, Connection
from toolchain.device.deploy import Settings
from toolchain.device.installed import DeviceRelease, Installed
from toolchain.device.lock import Owner
from toolchain.device.runner import Plan, Run
from toolchain.device.stages import Stages
from toolchain.devices import find_device
from toolchain.errors import InputError, ToolchainError
from toolchain.farm import boards as places
from toolchain.farm.boards import BoardRequest
from toolchain.models import inputs
from toolchain.models.request import Model
from toolchain.pipeline import anonymous, device_programs
from toolchain.pipeline.deploy import deploy_bundle
from toolchain.pipeline.source import BundleSource
from toolchain.records import SHIPPED
from toolchain.rpc import hardware
from toolchain.tuning.report import TuneReport

NETWORKS = ("mlp", "squeezenet_v1.1", "mobilenet", "resnet-18")
"""What is deployed if nothing else is named."""
TUNED = 2
"""So many of them, from the first on, are tuned a little."""

SCHEMA_VERSION = 1
_JSON, _MARKDOWN = "report.json", "report.md"
_HEADING = "## Survey of "
_ROUNDS = 5
_CACHE = "XDG_CACHE_HOME"
_MIB = 1024
_WIDEST = 80
_LARGE = 1000.0
_ALONE = "run that step's command alone to keep its files: see `toolchain tune --help`, `toolchain build --help`"

Figure = float | int | str | bool | None
Figures = Mapping[str, Figure]
"""What a step found out, by name."""


@dataclass(frozen=True)
class Request:
    """What is surveyed, from the command line.

    Attributes:
        boards: The device.
        tune: Tunes a network with records in a file.
        networks: Zoo names or paths of ONNX files.
        budget_s: Seconds to time each network.
        toolchain: Where libraries are linked; empty means as the board file says.
    """

    boards: BoardRequest
    tune: Callable[[str, Path], TuneReport]
    networks: tuple[str, ...] = NETWORKS
    budget_s: float = 10.0
    toolchain: str = ""

    @property
    def board(self) -> Board:
        """The board type."""
        return self.boards.board


@dataclass(frozen=True)
class Outcome:
    """What became of one step.

    Attributes:
        step: Its name.
        network: What it was done with; empty if with none.
        seconds: How long it took.
        figures: What it found out, as far as it came.
        fault: Why it failed; None if it did not.
    """

    step: str
    network: str
    seconds: float
    figures: Figures
    fault: ToolchainError | None = None

    def document(self) -> dict[str, Any]:
        """Return it as JSON's types."""
        fault = self.fault and {
            "code": self.fault.exit_code,
            "message": self.fault.message,
            "details": self.fault.details,
        }
        kept = {"step": self.step, "network": self.network, "seconds": round(self.seconds, 1)}
        return {**kept, "ok": self.fault is None, "figures": dict(self.figures), "fault": fault}


@dataclass(frozen=True)
class Survey:
    """A finished survey, or one on its way.

    Attributes:
        board: Board type.
        emulated: Whether the times are an emulator's.
        versions: Versions of what it was made with.
        outcomes: The steps so far.
    """

    board: str
    emulated: bool
    versions: Mapping[str, str]
    outcomes: tuple[Outcome, ...]

    @property
    def fault(self) -> ToolchainError | None:
        """Why the first step that failed did so; None if all is well."""
        return next((one.fault for one in self.outcomes if one.fault), None)

    def document(self) -> dict[str, Any]:
        """Return it as report.json holds it."""
        steps = [one.document() for one in self.outcomes]
        kept = {"board": self.board, "emulated": self.emulated, "versions": dict(self.versions)}
        return {"schema_version": SCHEMA_VERSION, **kept, "steps": steps}

    def table(self) -> str:
        """Return it as Markdown, for an issue."""
        failed = sum(one.fault is not None for one in self.outcomes)
        mark = " (emulated: times do not apply to a real board)" if self.emulated else ""
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        lines = [
            f"{_HEADING}{self.board}{mark}",
            "",
            f"{versions}. {len(self.outcomes)} steps, {failed} failed.",
            "",
        ]
        lines += ["| step | network | result | figures | s |", "|---|---|---|---|---|", *map(_row, self.outcomes)]
        for one in self.outcomes:
            if one.fault:
                title = f"{one.step} {one.network}".strip()
                lines += ["", f"### {title}", "", "```", one.fault.message, one.fault.details.rstrip(), "```"]
        return "\n".join([*lines, ""])


def _row(one: Outcome) -> str:
    verdict = f"FAILED ({one.fault.exit_code})" if one.fault else "ok"
    figures = ", ".join(f"{name} {_shown(value)}" for name, value in one.figures.items())
    return f"| {one.step} | {one.network} | {verdict} | {figures.replace('|', '/')} | {one.seconds:.0f} |"


def _shown(value: Figure) -> str:
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= _LARGE else f"{value:.4g}"
    return "-" if value is None else textwrap.shorten(str(value), _WIDEST, placeholder="...")


# --- one run ---------------------------------------------------------------------------------------------------------


@dataclass
class _Job:
    """A survey on its way: what is asked for, a folder for bundles and records, and who is told."""

    wanted: Request
    work: Path
    tell: Tell
    names: set[str] = field(default_factory=set)
    emulated: bool = False
    has_float16: bool = False

    @contextlib.contextmanager
    def connect(self) -> Iterator[ConnectedDevice]:
        boards = self.wanted.boards
        entry = find_device(boards.board, boards.host or None, boards.devices)
        entry = dataclasses.replace(entry, run=None)  # an application has nothing to do with what a survey tries
        self.names |= anonymous.names_of(entry.host)
        self.emulated = boards.board.emulated or entry.emulated
        with Connection(boards.board, entry, boards.ssh, boards.root, self.tell, boards.patience).open() as device:
            self.names |= anonymous.names_of(device.name)
            yield device

    def folder(self, network: str, kind: str = "") -> Path:
        """Return where something of a network is kept; a file's own path may be anywhere."""
        return self.work / f"{kind or 'bundle'}-{self.wanted.networks.index(network)}"


@dataclass(frozen=True)
class _Step:
    name: str
    network: str
    action: Callable[[], Figures]


def _plan(job: _Job) -> list[_Step]:
    """List the steps: a new one is one line here."""
    wanted, first = job.wanted, job.wanted.networks[0]
    accelerated = wanted.board.backend != "cpu"
    return [
        _Step("device", "", partial(_device, job)),
        _Step("hardware", "", partial(_hardware, job)),
        *(_Step("deploy", network, partial(_deploy, job, network)) for network in wanted.networks),
        *(_Step("float16", network, partial(_float16, job, network)) for network in wanted.networks if accelerated),
        _Step("start", wanted.networks[-1], partial(_start, job, wanted.networks[-1])),
        _Step("steadiness", first, partial(_steadiness, job, first)),
        *(_Step("tune", network, partial(_tune, job, network)) for network in wanted.networks[:TUNED]),
    ]


def run(wanted: Request, folder: Path, tell: Tell) -> Survey:
    """Survey a device; report.json and report.md are in the folder, and grow with each step.

    Args:
        wanted: What is asked for.
        folder: Where the reports are written.
        tell: Called with lines about progress.

    Returns:
        The survey, with the steps that failed.

    Raises:
        InputError: There is no such device, or the folder cannot be written or has other reports in it.
    """
    find_device(wanted.board, wanted.boards.host or None, wanted.boards.devices)
    _check_folder(folder)
    outcomes: list[Outcome] = []
    with temporary.folder() as work:
        job = _Job(wanted, Path(work), tell, anonymous.names_of(wanted.boards.host))
        found = _write(_survey(job, outcomes), folder)
        for step in _plan(job):
            tell(f"--- {step.name} {step.network}".rstrip())
            outcomes.append(_done(job, step))
            fault = outcomes[-1].fault
            tell(f"FAILED: {fault.message}" if fault else "ok")
            found = _write(_survey(job, outcomes), folder)
    return found


def _done(job: _Job, step: _Step) -> Outcome:
    """Do a step, whatever becomes of it."""
    start = time.monotonic()
    try:
        figures, fault = step.action(), None
    except ToolchainError as caught:
        figures, fault = {}, _anonymous(job, caught)
    except (RuntimeError, OSError, ValueError, TypeError, LookupError) as caught:
        # A fault of our own or of TVM's: the owner of a board should not have to run all the others again for it.
        figures, fault = {}, _anonymous(job, ToolchainError(f"internal error: {type(caught).__name__}: {caught}"))
    return Outcome(step.name, Path(step.network).name, time.monotonic() - start, figures, fault)


def _anonymous(job: _Job, fault: ToolchainError) -> ToolchainError:
    """Return the same fault without a word about whose device it is, and without advice about files of the survey's."""
    hint = _ALONE if str(job.work) in fault.hint else fault.hint
    texts = (anonymous.without(job.names, text) for text in (fault.message, fault.details, hint))
    message, details, hint = texts
    return type(fault)(message, details=details, hint=hint)


def _survey(job: _Job, outcomes: Sequence[Outcome]) -> Survey:
    made_of = {"toolchain": toolchain.__version__, "tvm": importlib.metadata.version("apache-tvm")}
    return Survey(job.wanted.board.name, job.emulated, made_of, tuple(outcomes))


def _check_folder(folder: Path) -> None:
    """Make the folder, and see that only the reports of an earlier survey are replaced in it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise files.unwritable(folder, fault) from fault
    outputs.check_file(folder / _JSON, "a survey", _foreign_json)
    outputs.check_file(folder / _MARKDOWN, "a survey", _foreign_markdown)


def _foreign_json(path: Path) -> str:
    try:
        found = files.read_json(path)
    except InputError as fault:
        return fault.message
    return "" if isinstance(found, dict) and "steps" in found else "it does not contain the steps of a survey"


def _foreign_markdown(path: Path) -> str:
    with path.open("rb") as stream:
        return "" if stream.read(len(_HEADING)) == _HEADING.encode() else f"it does not begin with {_HEADING!r}"


def _write(found: Survey, folder: Path) -> Survey:
    files.write_atomic(folder / _JSON, files.canonical_json(found.document()))
    files.write_atomic(folder / _MARKDOWN, found.table().encode())
    return found


# --- the steps -------------------------------------------------------------------------------------------------------


def _device(job: _Job) -> Figures:
    with job.connect() as device:
        facts = device.store.facts()
    kept = ("machine", "kernel", "glibc", "cpu", "cpus", "memory_kib")
    return {name: getattr(facts, name) for name in kept}


def _hardware(job: _Job) -> Figures:
    """Ask over RPC; where the farm serves several devices of the type, the first one answers."""
    with places.open_boards(job.wanted.boards, job.tell) as held:
        found, notes = hardware.examine(job.wanted.board, held.places[0])
    if found is None:
        return {"server": "TVM's own, which does not describe its hardware"}
    caches = {f"{name}_kib": size for name, size in found.cache_kib.items()}
    own = dataclasses.asdict(found.accelerator) if found.accelerator else {}
    job.has_float16 = own.get("float16", False)
    said: dict[str, Figure] = {"cpus": found.cpus, **caches, **own}
    return {**said, "notes": "; ".join(notes).replace(held.places[0].name, "the device") or None}


def _float16(job: _Job, network: str) -> Figures:
    if not job.has_float16:
        return {"left out": "the device does not compute in half precision, or does not report it"}
    return _deploy(job, network, job.wanted.board.in_float16())


def _deploy(job: _Job, network: str, board: Board | None = None) -> Figures:
    """Build, deploy, check the outputs and time them."""
    source = bundle_source(job.wanted, network, job.tell, board)
    with device_programs.building_runner(source.request.board):
        bundle = source.build(job.folder(network, "float16" if board else ""))
        program = device_programs.runner(source.request.board, source.stages)
    with job.connect() as connected:
        device = dataclasses.replace(connected, board=source.request.board)  # perhaps its type in half precision
        report = deploy_bundle(bundle, program, device, Settings(job.wanted.budget_s), source.stages)
    latency, run = report.measurement.latency, report.measurement.run
    difference = report.difference
    return {
        "median_ms": latency.median,
        "p90_ms": latency.p90,
        "min_ms": latency.min,
        "runs": len(latency.samples),
        "first_run_ms": run.warmup_ns[0] / 1e6,
        "load_ms": run.load_ms,
        "peak_rss_mib": run.peak_rss_kib / _MIB,
        "max_rel_diff": difference.max_rel if difference else None,
        "tolerance": difference.tolerance if difference else None,
        "threads": run.threads,
        "build_s": sum(report.stages.get(name, 0.0) for name in ("import", "reference", "compile")),
        "warnings": "; ".join(report.measurement.warnings) or None,
    }


def _start(job: _Job, network: str) -> Figures:
    """Start a network twice with an empty cache at first, from which the second start takes compiled kernels."""
    with _installed(job, network) as release:
        device = release.release.device
        folder = f"{device.store.root}/run/cache-{secrets.token_hex(8)}"
        try:
            first, second = (_start_ms(release.run(runner.SMOKE, {_CACHE: folder})) for _ in range(2))
        finally:
            device.shell.run(f"rm -rf {shlex.quote(folder)}", check=False)
    return {"first_start_ms": first, "second_start_ms": second, "ratio": first / second}


def _start_ms(run: Run) -> float:
    return run.load_ms + run.warmup_ns[0] / 1e6


def _steadiness(job: _Job, network: str) -> Figures:
    """Time a network several times over, in processes of their own."""
    plan = Plan(job.wanted.budget_s / _ROUNDS, warmup_runs=1)
    with _installed(job, network) as release:
        runs = [release.run(plan) for _ in range(_ROUNDS)]
    medians = [sorted(run.samples_ns)[len(run.samples_ns) // 2] / 1e6 for run in runs]
    spread = 100 * (max(medians) / min(medians) - 1)
    return {"rounds": _ROUNDS, "lowest_median_ms": min(medians), "highest_median_ms": max(medians), "spread_%": spread}


def _tune(job: _Job, network: str) -> Figures:
    found = job.wanted.tune(network, job.folder(network, "records"))
    ok = found.causes.get("ok", 0)
    first = found.points[0].estimated_s if found.points else None
    return {
        "trials": found.trials,
        "valid_%": 100 * ok / found.trials if found.trials else 0.0,
        "failed": ", ".join(f"{cause} {number}" for cause, number in found.failed.items()) or None,
        "s_per_trial": found.seconds / found.trials if found.trials else None,
        "tasks": len(found.tasks),
        "tasks_measured": sum(row.best_s is not None for row in found.tasks),
        "best_gflops": max((row.gflops for row in found.tasks if row.gflops), default=None),
        "first_estimate_ms": first and first * 1e3,
        "best_estimate_ms": found.estimated_s and found.estimated_s * 1e3,
    }


def bundle_source(wanted: Request, network: str, tell: Tell, board: Board | None = None) -> BundleSource:
    """Return what builds a network, without this machine's own tuning records: they would not be found elsewhere.

    Args:
        wanted: The survey.
        network: Zoo name or path of an ONNX file.
        tell: Who is told about each stage.
        board: The board type, where it is not the survey's as it stands in its file.
    """
    model = Model(network, {}, inputs.Source(None, None, 0))
    request = BuildRequest(model, board or wanted.board, tell, wanted.toolchain, Path(SHIPPED))
    return BundleSource(request, Stages(tell))


@contextlib.contextmanager
def _installed(job: _Job, network: str) -> Iterator[Installed]:
    """Bring a network to the device for the time of a block, where nobody else can deploy meanwhile."""
    source, folder = bundle_source(job.wanted, network, job.tell), job.folder(network)
    bundle = bundles.load(folder) if (folder / bundles.MANIFEST).is_file() else source.build(folder)
    program = device_programs.runner(source.request.board, source.stages)
    samples = verification.samples_of(bundle)
    with (
        job.connect() as device,
        temporary.folder() as work,
        device.store.lock(Owner.here("survey")),
    ):
        release = DeviceRelease.of_bundle(bundle, program, device)
        try:
            yield release.install(samples.inputs, Path(work))
        finally:
            device.store.prune(device.board.keep)
