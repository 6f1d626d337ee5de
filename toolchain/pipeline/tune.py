"""One tuning session from a model to its records: tasks, boards, builder, run, and the report of it."""

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
from toolchain.backends.base import Backend, MachineModel
from toolchain.backends.base.costs import CostModel
from toolchain.board import Board
from toolchain.compile import known, prepare
from toolchain.compile.known import record_key
from toolchain.compile.request import BuildRequest
from toolchain.device.lock import Owner
from toolchain.errors import DeviceError, InputError, ToolchainError
from toolchain.farm import boards as places
from toolchain.farm.boards import BoardRequest, Boards, Tell
from toolchain.models import flops, importer, source
from toolchain.models.importer import ImportedModel
from toolchain.models.request import Model
from toolchain.native import cross
from toolchain.records import Key, RecordFile, claims, default_path, tasks
from toolchain.records.apply import shipped_choices
from toolchain.records.lines import modelled_by
from toolchain.records.tasks import Task
from toolchain.rpc import hardware
from toolchain.tables import Shown
from toolchain.tuning import report
from toolchain.tuning.build import Builder
from toolchain.tuning.build.cluster.crew import DaskCrew
from toolchain.tuning.build.cluster.scheduler import Scheduler
from toolchain.tuning.build.crew import Hire
from toolchain.tuning.measure import Event, MeasurePool, Place
from toolchain.tuning.measure.costed import Costed
from toolchain.tuning.measure.modelled import Modelled
from toolchain.tuning.plan import UNDISTURBED, Plan, pace_for
from toolchain.tuning.prune import Pruner
from toolchain.tuning.report import BoardRow, Point, TaskRow, Totals, TuneReport
from toolchain.tuning.run import Tuning
from toolchain.tuning.task_state import TaskState
from toolchain.tuning.trials import Builds, Measures

if TYPE_CHECKING:
    import tvm

_FLOAT_BYTES = 4
_MOST_EXPECTED = 128  # boards that a run gets ready for before they are there
_AT_ONCE = 16  # a hundred boards, one after the other, would take minutes


@dataclass(frozen=True)
class Request:
    """What a session is asked for.

    Attributes:
        model: The model.
        boards: Which boards to measure on.
        plan: How to search and to measure, and when to stop.
        operators: Which tasks; all if empty.
        records: File of records; None means the board's own.
        passing: Whether that file is gone after the run, so that nobody is told to go on from it.
        toolchain: Where candidates are linked; empty means as the board file says.
        without: Names of templates that are not to be used.
        modelled: Whether a model of the board's machine code times the candidates, and no board is asked.
        builders: Dask scheduler whose workers compile candidates; None: this machine does.
    """

    model: Model
    boards: BoardRequest
    plan: Plan
    operators: tuple[str, ...] = ()
    records: Path | None = None
    passing: bool = False
    toolchain: str = ""
    without: tuple[str, ...] = ()
    modelled: bool = False
    builders: Scheduler | None = None

    @property
    def board(self) -> Board:
        """The board type."""
        return self.boards.board

    def build(self, tell: Tell) -> BuildRequest:
        """Return what is compiled, and who is told of it."""
        return BuildRequest(self.model, self.board, tell, self.toolchain, without=self.without)


@dataclass(frozen=True)
class Extracted:
    """A model's tasks for a board type, and the calls of kernels that they are the tasks of."""

    imported: ImportedModel
    backend: Backend
    tasks: tuple[Task, ...]
    lowered: tvm.IRModule


def extract(request: BuildRequest) -> Extracted:
    """Import a model and list its tasks for a board type.

    Args:
        request: The model, the board type, and who is told where the model is quantized on its way.

    Raises:
        InputError: There is no such model, it cannot be imported, or the board file does not say the board's cores.
    """
    board, backend = request.board, request.backend
    if not board.cores:
        raise InputError(
            f"board {board.name} does not say how many cores kernels are scheduled for",
            hint=f"set `cores` in boards/{board.name}.toml",
        )
    _ = backend.target  # what it has against the board file is told before the model is read
    loaded = source.load_request(request.model)
    for line in loaded.guessed:
        request.tell(line)
    imported = importer.import_model(prepare.suited(loaded, request).source)
    lowered = backend.lowered(prepare.fitted(imported, request))
    return Extracted(imported, backend, tasks.extract(lowered, backend), lowered)


@dataclass
class _Watch:
    """What the boards did, gathered from their threads.

    Attributes:
        tell: Who is told what a person should know.
        boards: The boards of the run.
        trials: Trials by board.
        failures: Failed ones by board.
        quarantines: Quarantines by board.
    """

    tell: Tell
    boards: Boards
    trials: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    quarantines: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def observe(self, event: Event) -> None:
        """Count an event, pass it on to the farm, and tell what matters."""
        with self.lock:
            if event.kind == "ended" and event.measured is not None and event.trial and not event.trial.rivals:
                self.trials[event.place] += 1
                self.failures[event.place] += bool(event.measured.cause)
            if event.kind == "quarantined":
                self.quarantines[event.place] += 1
        if event.kind == "stock":
            self.tell(f"warning: {event.place}: {event.detail}")
        elif event.kind not in {"started", "ended"}:
            self.tell(f"{event.place}: {event.kind}" + (f", {event.detail}" if event.detail else ""))
        self.boards.report(event)


@dataclass(frozen=True)
class _Session:
    """What a run begins with.

    Attributes:
        wanted: What is asked for.
        found: The model and all of its tasks.
        tasks: Those that are tuned.
        file: Where the records go.
        redraw: Called with the table of the tasks.
        modelled: What a model computes the times for; empty where something runs.
        stamp: What those are by.
        pruner: Rules out candidates before a board is asked; None to measure all.
    """

    wanted: Request
    found: Extracted
    tasks: Sequence[Task]
    file: RecordFile
    redraw: Callable[[Shown], None]
    modelled: str = ""
    stamp: str = ""
    pruner: Pruner | None = None


def run(wanted: Request, tell: Tell, redraw: Callable[[Shown], None]) -> TuneReport:
    """Tune a model; what was found is in the file of records, also when this ends early.

    Args:
        wanted: What is asked for.
        tell: Called with lines about progress.
        redraw: Called with the table of the tasks.

    Returns:
        The report.

    Raises:
        InputError: The model, the board file, an option or the records are wrong.
        BuildError: No candidate of any task works.
        BusyError: Others are at work on the boards, or at this very search.
        DeviceError: No board is left.
        BuildersError: Others are to compile, and there are none.
        VerificationError: A board is not what its board file says, or no builder is like this machine.
    """
    if not wanted.modelled:
        cross.choose(
            wanted.board, wanted.toolchain
        ).describe()  # a missing compiler is told before the boards are taken, and so are records that are none
    if wanted.builders:
        with wanted.builders.client():  # so is a scheduler that is not there
            pass
    judge = _judge(wanted, tell)
    file = RecordFile(wanted.records or default_path(wanted.board.name), tell)
    if file.path.exists():
        file.catalog()
    if not wanted.passing:
        tell(f"tuning records: {file.path}")
    tell(f"importing {wanted.model.source}")
    found = extract(wanted.build(tell))
    chosen = tasks.select(found.tasks, wanted.operators)
    name = wanted.plan.run_id(record_key(found.backend), chosen, str(bool(judge)))
    owner = Owner.here(wanted.boards.purpose)
    with contextlib.ExitStack() as stack:
        wanted.boards.patience.get(lambda: stack.enter_context(claims.claimed(file.path, name, owner)))
        return _run(_Session(wanted, found, chosen, file, redraw), judge, tell)


def _run(session: _Session, judge: CostModel | None, tell: Tell) -> TuneReport:
    """Tune, on boards or by a model that stands in for them."""
    wanted, found, chosen = session.wanted, session.found, session.tasks
    if judge is not None and wanted.modelled:
        return _by_costs(session, judge, tell)
    if judge is not None:
        session = replace(session, pruner=Pruner(judge, wanted.plan.prune))
    model = found.backend.machine_model if wanted.board.emulated else None
    if model is not None:
        return _by_model(session, model, tell)
    tell(f"{len(chosen)} tasks for {wanted.board.name}")
    driver = cross.choose(wanted.board, wanted.toolchain)
    with contextlib.ExitStack() as stack:
        folder = files.cache_root() / "candidates"  # where the next builder finds what a killed one left
        timeout_s = wanted.plan.options.build_timeout_s
        hire = _hire(wanted, tell)
        builder = stack.enter_context(Builder(found.backend.target, driver, folder, timeout_s=timeout_s, hire=hire))
        held = stack.enter_context(places.open_boards(replace(wanted.boards, shares=True), tell))
        _examine(wanted.board, held, tell)
        watch = _Watch(tell, held)
        pool = stack.enter_context(MeasurePool(held.places, wanted.plan.options, watch.observe))
        held.follow(pool, partial(_fits, wanted.board, tell), tell)
        return replace(_tuned(_paced(session, held), builder, pool, watch), builders=builder.rows)


def _paced(session: _Session, held: Boards) -> _Session:
    """Let as much be on its way as the boards need that there are, or that are to come."""
    wanted = session.wanted
    if wanted.board.connection == "local":
        return session
    boards = max(len(held.places), min(wanted.boards.limit, _MOST_EXPECTED))
    plan = wanted.plan
    pace = pace_for(boards, plan.trials // len(session.tasks))
    return replace(session, wanted=replace(wanted, plan=replace(plan, pace=pace)))


def _hire(wanted: Request, tell: Tell) -> Hire | None:
    """Say who compiles candidates: None for this machine alone."""
    return partial(DaskCrew, wanted.builders, wanted.board.triple, tell) if wanted.builders else None


def _judge(wanted: Request, tell: Tell) -> CostModel | None:
    """Return the model that times candidates or rules them out; None if neither is wanted.

    Raises:
        InputError: There is none of the board, or it is not good enough for that.
        BuildError: It cannot be made here.
    """
    if not wanted.modelled and not wanted.plan.prune:
        return None
    found = wanted.build(tell).backend.cost_model(tell)
    if found.obstacle:
        raise InputError(
            f"no model can judge candidates for {wanted.board.name}",
            details=found.obstacle,
            hint="leave --modelled and --prune out",
        )
    return found


def _by_costs(session: _Session, model: CostModel, tell: Tell) -> TuneReport:
    """Tune by a model of the machine code that candidates become; no board is asked."""
    tell(f"{len(session.tasks)} tasks for {model.name}, ranked without a board: {model.stamp}")
    watch = _Watch(tell, Boards((), model=f"{model.name}, {model.stamp}"))
    costed = Costed(model, watch.observe)
    by = modelled_by(model.name, model.identity)
    return _tuned(replace(session, modelled=by, stamp=model.stamp), costed, costed, watch)


def _by_model(session: _Session, model: MachineModel, tell: Tell) -> TuneReport:
    """Tune the accelerator's kernels by a model of it, where a board's times would be an emulator's.

    Raises:
        InputError: None of the tasks is the accelerator's, or others are to compile what nobody compiles.
    """
    wanted, chosen = session.wanted, session.tasks
    if wanted.builders:
        raise InputError(
            f"--builders has nothing to compile: candidates for board {wanted.board.name} are timed by a model",
            hint="leave --builders out",
        )
    own = [task for task in chosen if task.layer and model.cycles(task.layer, None) is not None]
    if not own:
        raise InputError(
            f"the accelerator of {wanted.board.name} computes none of the {len(chosen)} chosen tasks",
            details=f"its board's times are an emulator's, and the model {model.name} knows the accelerator alone",
            hint=f"`toolchain tasks {wanted.model.source} --board {wanted.board.name}` lists them",
        )
    tell(f"{len(own)} tasks of the accelerator, in cycles of the model {model.name}: modelled, not measured")
    if len(own) < len(chosen):
        tell(f"{len(chosen) - len(own)} tasks of the CPU are left as they are")
    watch = _Watch(tell, Boards((), model=model.name))
    modelled = Modelled(model, watch.observe)
    return _tuned(replace(session, tasks=own), modelled, modelled, watch)


def _examine(board: Board, held: Boards, tell: Tell) -> None:
    """Hold the boards against their board file; one that is away for a moment is waited for while others measure."""
    with ThreadPoolExecutor(_AT_ONCE) as crew:
        faults = [fault for fault in crew.map(partial(_examined, board, tell), held.places) if fault]
    if len(faults) == len(held.places):
        raise faults[0]


def _examined(board: Board, tell: Tell, place: Place) -> DeviceError | None:
    """Hold a board against its board file; return why it is away for a moment, if it is."""
    try:
        found, notes = hardware.examine(board, place)
    except DeviceError as fault:
        tell(f"warning: {place.name}: {fault.message}")
        return fault
    tell(f"{place.name}: {found or 'a server of TVM itself, which does not say what it runs on'}")
    for note in notes:
        tell(f"warning: {note}")
    return None


def _fits(board: Board, tell: Tell, place: Place) -> bool:
    """Tell whether a board that joins a run is what its board file says; the run goes on without one that is not."""
    try:
        _examined(board, tell, place)
    except ToolchainError as fault:
        tell(f"warning: {place.name} is left out: {fault.message}")
        return False
    return True


def _tuned(session: _Session, builder: Builds, pool: Measures, watch: _Watch) -> TuneReport:
    wanted, found, file = session.wanted, session.found, session.file
    emulated = watch.boards.emulated
    options = wanted.plan.options
    key = record_key(
        found.backend,
        emulated=emulated,
        modelled=session.modelled,
        threads=options.threads,
        options=options.recorded,
    )
    own = known.shipped_records(found.backend)
    job = Tuning(
        session.tasks,
        found.backend,
        key,
        file=file,
        plan=replace(wanted.plan, passing_bytes=_weight_bytes(found.imported)),
        builds=builder,
        measures=pool,
        pruner=session.pruner,
        shipped=shipped_choices(session.tasks, own, found.backend.templates),
        on_tick=lambda: session.redraw(live(job)),
    )
    with contextlib.nullcontext() if wanted.passing else _told(job, file, watch.tell):
        job.run()
    made = _report(wanted, found, job, watch, key)
    pruned_by = session.pruner.model.stamp if session.pruner else ""
    return replace(made, modelled=session.stamp, pruned_by=pruned_by)


def _weight_bytes(imported: ImportedModel) -> int:
    return _FLOAT_BYTES * flops.parameters(imported.source.proto.graph)


@contextlib.contextmanager
def _told(job: Tuning, file: RecordFile, tell: Tell) -> Iterator[None]:
    """Say what is kept, whether the run ends well or not, and how to go on where it does not."""
    finished = False
    try:
        yield
        finished = True
    finally:
        if job.trials:
            next_step = "" if finished else "; the same command goes on from there"
            tell(f"{job.trials} trials of this run are in {file.path}{next_step}")


def plan_for(board: Board, plan: Plan) -> Plan:
    """Complete a plan by what follows from the board type."""
    return replace(plan, pace=UNDISTURBED) if board.connection == "local" else plan


# --- what people see -------------------------------------------------------------------------------------------------


def live(job: Tuning) -> Shown:
    """Return the table of the tasks as it is now."""
    return report.live([_row(job, state) for state in job.states], _totals(job))


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
    )


def _totals(job: Tuning) -> Totals:
    fresh = job.trials - job.resumed
    left = max(job.plan.trials - job.trials, 0)
    eta = left * job.seconds / fresh if fresh else None
    current = job.current.task.id if job.current else None
    return Totals(job.estimated_s, job.trials, job.plan.trials, job.seconds, eta, current)


def _report(wanted: Request, found: Extracted, job: Tuning, watch: _Watch, key: Key) -> TuneReport:
    names = dict.fromkeys([*(place.name for place in watch.boards.places), *watch.trials, *watch.quarantines])
    rows = tuple(BoardRow(name, watch.trials[name], watch.failures[name], watch.quarantines[name]) for name in names)
    if watch.boards.model:
        rows = (BoardRow(f"model {watch.boards.model}", watch.trials[watch.boards.model], 0, 0),)
    untuned = job.untuned_s()
    return TuneReport(
        model=found.imported.source.name,
        board=wanted.board.name,
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
        points=tuple(Point(one.seconds, one.trials, one.estimated_s) for one in job.points),
        boards=rows,
        waited=watch.boards.waited,
        winners=tuple(one.decision for one in job.states if one.decision and one.decision.verdict == "faster"),
    )
