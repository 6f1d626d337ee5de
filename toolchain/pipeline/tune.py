"""A tuning run from a model to its records: tasks, boards, builder, search, and report."""

from __future__ import annotations

import contextlib
import json
import math
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from toolchain import files
from toolchain.backends.base import Backend, CostModel, MachineModel
from toolchain.board import Board
from toolchain.compile import applicable_records, in_place, prepare
from toolchain.compile.applicable_records import record_key
from toolchain.compile.request import BuildRequest
from toolchain.device.lock import Owner
from toolchain.errors import DeviceError, InputError, ToolchainError
from toolchain.farm import boards as farm_boards
from toolchain.farm.boards import BoardRequest, Boards
from toolchain.models import flops, importer, source
from toolchain.models.importer import ImportedModel
from toolchain.models.request import Model
from toolchain.native import cross
from toolchain.progress import Progress
from toolchain.records import Key, RecordFile, claims, default_path, tasks
from toolchain.records.apply import shipped_choices
from toolchain.records.lines import modelled_by
from toolchain.records.tasks import Task
from toolchain.report import Shown
from toolchain.rpc import hardware
from toolchain.tuning import report
from toolchain.tuning.build import Builder
from toolchain.tuning.build.cluster.crew import DaskCrew
from toolchain.tuning.build.cluster.scheduler import Scheduler
from toolchain.tuning.build.crew import Hire
from toolchain.tuning.conveyor import Pruner
from toolchain.tuning.measure import Event, MeasurePool, Place
from toolchain.tuning.measure import peak as board_peak
from toolchain.tuning.measure.estimated import Costed, Modelled
from toolchain.tuning.measure.peak import NO_BOARD, BoardPeak
from toolchain.tuning.plan import UNDISTURBED, Plan, pace_for
from toolchain.tuning.report import BoardRow, Point, TaskRow, Totals, TuneReport
from toolchain.tuning.run import Tuning
from toolchain.tuning.task_state import TaskState
from toolchain.tuning.trials import Builds, Measures

if TYPE_CHECKING:
    import tvm

_FLOAT_BYTES = 4
_MAX_EXPECTED = 128  # boards for which a run prepares before they have joined
_EXAMINED_AT_ONCE = 16  # a hundred boards, one after the other, would take minutes


@dataclass(frozen=True)
class TuneRequest:
    """What to tune, and how."""

    model: Model
    boards: BoardRequest
    plan: Plan  # how to search and to measure, and when to stop
    operators: tuple[str, ...] = ()  # which tasks; all if empty
    records: Path | None = None  # file of records; None means the board's own
    passing: bool = False  # whether that file is temporary, so that the user is not told to resume from it
    toolchain: str = ""  # where candidates are linked; empty means as the board file says
    without: tuple[str, ...] = ()  # names of templates that are not used
    modelled: bool = False  # whether a model of the board's machine code times the candidates instead of a board
    builders: Scheduler | None = None  # Dask scheduler whose workers compile candidates; None: this machine does

    @property
    def board(self) -> Board:
        return self.boards.board

    def build(self, progress: Progress) -> BuildRequest:
        return BuildRequest(self.model, self.board, progress, self.toolchain, without=self.without)


@dataclass(frozen=True)
class Extracted:
    """A model's tasks for a board type, and the calls of the kernels behind them."""

    imported: ImportedModel
    backend: Backend
    tasks: tuple[Task, ...]
    lowered: tvm.IRModule


def extract(request: BuildRequest) -> Extracted:
    """Import a model and list its tasks for a board type.

    Raises:
        InputError: There is no such model, it cannot be imported, or the board file does not say the board's cores.
    """
    board, backend = request.board, request.backend
    if not board.cores:
        raise InputError(
            f"board {board.name} does not say how many cores kernels are scheduled for",
            hint=f"set `cores` in boards/{board.name}.toml",
        )
    _ = backend.target  # a fault of the board file is reported before the model is read
    loaded = source.load_request(request.model)
    for line in loaded.guessed:
        request.progress(line)
    imported = importer.import_model(prepare.quantize_if_needed(loaded, request).source)
    lowered = backend.lower(in_place.prepared_module(imported, request))
    return Extracted(imported, backend, tasks.extract(lowered, backend), lowered)


@dataclass
class _BoardCounts:
    """Counts trials, failures and quarantines by board, gathered from the boards' threads."""

    progress: Progress
    boards: Boards
    trials: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    quarantines: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def observe(self, event: Event) -> None:
        """Count an event, pass it on to the farm, and report what matters."""
        with self.lock:
            if event.kind == "ended" and event.measured is not None and event.trial and not event.trial.rivals:
                self.trials[event.place] += 1
                self.failures[event.place] += bool(event.measured.cause)
            if event.kind == "quarantined":
                self.quarantines[event.place] += 1
        if event.kind == "stock":
            self.progress(f"warning: {event.place}: {event.detail}")
        elif event.kind not in {"started", "ended"}:
            self.progress(f"{event.place}: {event.kind}" + (f", {event.detail}" if event.detail else ""))
        self.boards.report(event)


@dataclass(frozen=True)
class _Session:
    """The inputs of a run."""

    request: TuneRequest
    extracted: Extracted
    tasks: Sequence[Task]  # those that are tuned
    file: RecordFile
    redraw: Callable[[Shown], None]
    modelled: str = ""  # the model that computes the times, as records name it; empty if they are measured
    stamp: str = ""  # the same as reports name it
    pruner: Pruner | None = None  # rules out candidates before a board measures them; None to measure all
    peak: BoardPeak = NO_BOARD  # of the boards


def run(request: TuneRequest, progress: Progress, redraw: Callable[[Shown], None]) -> TuneReport:
    """Tune a model; the results are in the file of records, also if the run ends early.

    `redraw` is called with the table of the tasks.

    Raises:
        InputError: The model, the board file, an option or the records are wrong.
        BuildError: No candidate of any task works.
        BusyError: Others are at work on the boards, or at this very search.
        DeviceError: No board is left.
        BuildersError: The scheduler's workers are to compile, and there are none.
        VerificationError: A board is not what its board file says, or no builder is like this machine.
    """
    # A missing compiler, a missing scheduler and broken records are reported before boards are taken.
    if not request.modelled:
        cross.choose(request.board, request.toolchain).describe()
    if request.builders:
        with request.builders.client():
            pass
    cost_model = _cost_model(request, progress)
    file = RecordFile(request.records or default_path(request.board.name), progress)
    if file.path.exists():
        file.read()
    if not request.passing:
        progress(f"tuning records: {file.path}")
    progress(f"importing {request.model.source}")
    extracted = extract(request.build(progress))
    selected = tasks.select(extracted.tasks, request.operators)
    name = request.plan.run_id(record_key(extracted.backend), selected, str(bool(cost_model)))
    owner = Owner.here(request.boards.purpose)
    with contextlib.ExitStack() as stack:
        request.boards.patience.get(lambda: stack.enter_context(claims.claim_run(file.path, name, owner)))
        return _run(_Session(request, extracted, selected, file, redraw), cost_model, progress)


def _run(session: _Session, cost_model: CostModel | None, progress: Progress) -> TuneReport:
    """Tune on boards, or by a model that stands in for them."""
    request, extracted = session.request, session.extracted
    if cost_model is not None and request.modelled:
        progress(f"{len(session.tasks)} tasks for {cost_model.name}, ranked without a board: {cost_model.stamp}")
        counts = _BoardCounts(progress, Boards((), model=f"{cost_model.name}, {cost_model.stamp}"))
        estimates = Costed(cost_model, counts.observe)
        session = replace(session, modelled=modelled_by(cost_model.name, cost_model.identity), stamp=cost_model.stamp)
        return _search(session, estimates, estimates, counts)
    if cost_model is not None:
        session = replace(session, pruner=Pruner(cost_model, request.plan.prune))
    model = extracted.backend.machine_model if request.board.emulated else None
    if model is not None:
        return _tune_by_model(session, model, progress)
    progress(f"{len(session.tasks)} tasks for {request.board.name}")
    driver = cross.choose(request.board, request.toolchain)
    with contextlib.ExitStack() as stack:
        folder = files.cache_root() / "candidates"  # fixed, so that the next builder removes what a killed one left
        timeout_s = request.plan.options.build_timeout_s
        hire: Hire | None = None  # None: this machine compiles
        if request.builders:
            hire = partial(DaskCrew, request.builders, request.board.triple, progress)
        builder = stack.enter_context(Builder(extracted.backend.target, driver, folder, timeout_s=timeout_s, hire=hire))
        boards = stack.enter_context(farm_boards.open_boards(replace(request.boards, shares=True), progress))
        _examine(request.board, boards, progress)
        session = _with_peak(session, boards, progress)
        counts = _BoardCounts(progress, boards)
        pool = stack.enter_context(MeasurePool(boards.places, request.plan.options, counts.observe))
        boards.follow(pool, partial(_accept, request.board, progress), progress)
        return replace(_search(_with_pace(session, boards), builder, pool, counts), builders=builder.rows)


def _with_pace(session: _Session, boards: Boards) -> _Session:
    """Prepare as many candidates ahead as the boards need that are there, or are expected."""
    request = session.request
    if request.board.connection == "local":
        return session
    count = max(len(boards.places), min(request.boards.limit, _MAX_EXPECTED))
    plan = request.plan
    pace = pace_for(count, plan.trials // len(session.tasks))
    return replace(session, request=replace(request, plan=replace(plan, pace=pace)))


def _with_peak(session: _Session, boards: Boards, progress: Progress) -> _Session:
    """Measure the peak of the boards, so that the report shows what their kernels could reach."""
    progress("measuring the peak of the boards")
    kind = str(session.extracted.backend.target.kind.name)
    return replace(session, peak=board_peak.measure(boards.places, kind, session.request.plan.options.threads))


def _cost_model(request: TuneRequest, progress: Progress) -> CostModel | None:
    """Return the model that times candidates or rules them out; None if neither is requested.

    Raises:
        InputError: The board has no such model, or it is not good enough.
        BuildError: It cannot be made here.
    """
    if not request.modelled and not request.plan.prune:
        return None
    model = request.build(progress).backend.cost_model(progress)
    if model.obstacle:
        raise InputError(
            f"no model can judge candidates for {request.board.name}",
            details=model.obstacle,
            hint="leave --modelled and --prune out",
        )
    return model


def _tune_by_model(session: _Session, model: MachineModel, progress: Progress) -> TuneReport:
    """Tune an accelerator's kernels by a model of it, because a board's times would be an emulator's.

    Raises:
        InputError: None of the tasks is the accelerator's, or Dask workers are to compile, but nothing is compiled.
    """
    request, selected = session.request, session.tasks
    if request.builders:
        raise InputError(
            f"--builders has nothing to compile: candidates for board {request.board.name} are timed by a model",
            hint="leave --builders out",
        )
    offloaded = [task for task in selected if task.layer and model.cycles(task.layer, None) is not None]
    if not offloaded:
        raise InputError(
            f"the accelerator of {request.board.name} computes none of the {len(selected)} chosen tasks",
            details=f"its board's times are an emulator's, and the model {model.name} knows the accelerator alone",
            hint=f"`toolchain tasks {request.model.source} --board {request.board.name}` lists them",
        )
    progress(f"{len(offloaded)} tasks of the accelerator, in cycles of the model {model.name}: modelled, not measured")
    if len(offloaded) < len(selected):
        progress(f"{len(selected) - len(offloaded)} tasks of the CPU are left as they are")
    counts = _BoardCounts(progress, Boards((), model=model.name))
    machine = Modelled(model, counts.observe)
    return _search(replace(session, tasks=offloaded), machine, machine, counts)


def _examine(board: Board, boards: Boards, progress: Progress) -> None:
    """Compare the boards with their board file; one that is away for a moment may come back while others measure."""
    with ThreadPoolExecutor(_EXAMINED_AT_ONCE) as threads:
        faults = [fault for fault in threads.map(partial(_examine_one, board, progress), boards.places) if fault]
    if len(faults) == len(boards.places):
        raise faults[0]


def _examine_one(board: Board, progress: Progress, place: Place) -> DeviceError | None:
    """Compare a board with its board file; return why it is away for a moment, if it is."""
    try:
        description, notes = hardware.examine(board, place)
    except DeviceError as fault:
        progress(f"warning: {place.name}: {fault.message}")
        return fault
    progress(f"{place.name}: {description or 'a server of TVM itself, which does not say what it runs on'}")
    for note in notes:
        progress(f"warning: {note}")
    return None


def _accept(board: Board, progress: Progress, place: Place) -> bool:
    """Whether a board that joins a run is what its board file says; without it the run goes on."""
    try:
        _examine_one(board, progress, place)
    except ToolchainError as fault:
        progress(f"warning: {place.name} is left out: {fault.message}")
        return False
    return True


def _search(session: _Session, builder: Builds, pool: Measures, counts: _BoardCounts) -> TuneReport:
    request, extracted, file = session.request, session.extracted, session.file
    emulated = counts.boards.emulated
    options = request.plan.options
    key = record_key(
        extracted.backend,
        emulated=emulated,
        modelled=session.modelled,
        threads=options.threads,
        options=options.recorded,
    )
    shipped = applicable_records.shipped_records(extracted.backend)
    weight_bytes = _FLOAT_BYTES * flops.parameters(extracted.imported.source.proto.graph)
    job = Tuning(
        session.tasks,
        extracted.backend,
        key,
        file=file,
        plan=replace(request.plan, passing_bytes=weight_bytes),
        builds=builder,
        measures=pool,
        pruner=session.pruner,
        shipped=shipped_choices(session.tasks, shipped, extracted.backend.templates),
        on_tick=lambda: session.redraw(live(job)),
    )
    with contextlib.nullcontext() if request.passing else _announce_end(job, file, counts.progress):
        job.run()
    tune_report = _report(request, extracted, job, counts, key)
    pruned_by = session.pruner.model.stamp if session.pruner else ""
    peak, no_peak = session.peak.peak, session.peak.reason
    return replace(tune_report, modelled=session.stamp, pruned_by=pruned_by, peak=peak, no_peak=no_peak)


@contextlib.contextmanager
def _announce_end(job: Tuning, file: RecordFile, progress: Progress) -> Iterator[None]:
    """Report what was recorded when the run ends, and how to resume it if it was interrupted."""
    finished = False
    try:
        yield
        finished = True
    finally:
        if job.trials:
            next_step = "" if finished else "; the same command goes on from there"
            progress(f"{job.trials} trials of this run are in {file.path}{next_step}")


def plan_for(board: Board, plan: Plan) -> Plan:
    """Complete a plan: on this machine, searching must not disturb measuring."""
    return replace(plan, pace=UNDISTURBED) if board.connection == "local" else plan


# --- tables and report -----------------------------------------------------------------------------------------------


def live(job: Tuning) -> Shown:
    """Return the table of the tasks as it is now."""
    fresh = job.trials - job.resumed
    remaining = max(job.plan.trials - job.trials, 0)
    eta = remaining * job.seconds / fresh if fresh else None
    current = job.current.task.id if job.current else None
    totals = Totals(job.estimated_s, job.trials, job.plan.trials, job.seconds, eta, current)
    return report.live([_row(job, state) for state in job.states], totals)


def _row(job: Tuning, state: TaskState, untuned_s: float | None = None) -> TaskRow:
    task, decision = state.task, state.decision
    best = None if math.isinf(state.fastest_s) else state.fastest_s
    return TaskRow(
        id=task.id,
        name=task.name,
        operator=task.operator,
        shape=task.shape,
        weight=task.weight,
        gflop=task.gflop,
        trials=state.measured,
        failed=state.failed,
        best_s=decision.latency_s if decision else best,
        done=bool(job.why_done(state)),
        untuned_s=untuned_s,
        pruned=state.pruned,
        verdict=decision.verdict if decision else "",
        gbytes=task.gbytes,
    )


def _report(request: TuneRequest, extracted: Extracted, job: Tuning, counts: _BoardCounts, key: Key) -> TuneReport:
    names = dict.fromkeys([*(place.name for place in counts.boards.places), *counts.trials, *counts.quarantines])
    rows = tuple(BoardRow(name, counts.trials[name], counts.failures[name], counts.quarantines[name]) for name in names)
    if counts.boards.model:
        rows = (BoardRow(f"model {counts.boards.model}", counts.trials[counts.boards.model], 0, 0),)
    untuned = job.untuned_s()
    return TuneReport(
        model=extracted.imported.source.name,
        board=request.board.name,
        emulated=key.emulated,
        target=json.loads(key.target),
        tuner=job.plan.tuner,
        seed=job.plan.seed,
        options=asdict(job.plan.options),
        trials=job.trials,
        planned=job.plan.trials,
        first_batch=job.first_batch,
        ended=job.ended,
        resumed=job.resumed,
        causes=dict(job.causes),
        seconds=job.seconds,
        shares=job.shares.seconds,
        tasks=tuple(_row(job, state, untuned.get(state.task.workload)) for state in job.states),
        points=tuple(Point(point.seconds, point.trials, point.estimated_s) for point in job.points),
        boards=rows,
        waited=counts.boards.waited,
        winners=tuple(state.decision for state in job.states if state.decision and state.decision.verdict == "faster"),
    )
