import contextlib
import signal
import statistics
from concurrent.futures import Future

import pytest

from tests.support import nightly
from tests.support.cost_models import FormulaCosts
from tests.support.stores import soon
from tests.support.tuning_client import FormulaBuilds, FormulaMeasures, backend, crashes, lowered
from toolchain import interrupts
from toolchain.backends.base import Backend
from toolchain.errors import BuildError, DeviceError, InputError
from toolchain.records import Key, RecordFile, tasks
from toolchain.records.lines import USUAL
from toolchain.records.metaschedule import target_table
from toolchain.records.results import PRUNED
from toolchain.tuning.conveyor import Pruner
from toolchain.tuning.plan import UNDISTURBED, Pace, Plan
from toolchain.tuning.run import Tuning
from toolchain.tuning.trials import Built, Measured, Options

KEY = Key.of(target_table(backend().target))


@pytest.fixture(scope="module")
def kernels():
    return tasks.extract(lowered("mlp"), backend())


class NoBuilds(FormulaBuilds):
    """A compiler that refuses everything."""

    def build(self, modules):
        return [Built(None, "no compiler", 0.1) for _ in modules]


class Remembering(FormulaBuilds):
    """Keeps what it is given."""

    given = ()

    def build(self, modules):
        self.given = (*self.given, *modules)
        return super().build(modules)


class Failing(FormulaMeasures):
    """Boards on which everything crashes."""

    def submit(self, _trial):
        future = Future()
        future.set_result(Measured((), "crash", "segmentation fault", "board-1"))
        return future


class Gone(FormulaMeasures):
    """Boards that are lost after some trials."""

    def __init__(self, after):
        super().__init__()
        self.left = after

    def submit(self, trial):
        self.left -= 1
        if self.left >= 0:
            return super().submit(trial)
        future = Future()
        future.set_exception(DeviceError("no board is left"))
        return future


def tuning(tmp_path, chosen, builds=None, measures=None, pruner=None, key=KEY, **plan):
    folder = tmp_path / "libraries"
    folder.mkdir(exist_ok=True)
    return Tuning(
        chosen,
        backend(),
        key,
        file=RecordFile(tmp_path / "records.jsonl"),
        plan=Plan(**{"tuner": "random", "trials": 48, **plan}),
        builds=builds or FormulaBuilds(folder),
        measures=measures or FormulaMeasures(),
        pruner=pruner,
    )


def pruning(tmp_path, chosen, builds=None, measures=None, **plan):
    """Return a run in which a formula rules candidates out."""
    return tuning(tmp_path, chosen, builds, measures, Pruner(FormulaCosts(), 3.0), prune=3.0, **plan)


def recorded(tmp_path):
    return RecordFile(tmp_path / "records.jsonl").read().of(KEY)


def decided(tmp_path):
    return RecordFile(tmp_path / "records.jsonl").read().decided(KEY)


@pytest.mark.parametrize("ahead", [0, 16, 100])
def test_a_run_measures_as_many_trials_as_it_was_asked_for(tmp_path, kernels, ahead):
    job = tuning(tmp_path, kernels[1:4], trials=40, pace=Pace(ahead=ahead))
    job.run()
    assert job.trials == len(recorded(tmp_path)) == 40
    assert job.causes["ok"] + job.causes["crash"] == 40
    assert job.estimated_s == pytest.approx(sum(state.task.weight * state.fastest_s for state in job.states))
    assert job.points[-1].estimated_s == job.estimated_s
    assert list((tmp_path / "libraries").iterdir()) == []


@pytest.mark.long
@pytest.mark.parametrize(
    "tuner", ["evolutionary-xgb", nightly.left("evolutionary-random"), nightly.left("random"), "grid"]
)
def test_what_is_under_way_is_not_proposed_again(tmp_path, kernels, tuner):
    tuning(tmp_path, kernels[1:2], tuner=tuner, trials=60, pace=Pace(ahead=16)).run()
    assert len({record.candidate for record in recorded(tmp_path)}) == 60


def test_records_name_their_round_and_their_run(tmp_path, kernels):
    job = tuning(tmp_path, kernels[1:2], trials=20)
    job.run()
    assert [
        (record.round, record.index, record.of)
        for record in sorted(recorded(tmp_path), key=lambda record: (record.round, record.index))
    ] == [
        *((0, index, 8) for index in range(8)),
        *((1, index, 16) for index in range(12)),
    ]
    assert {record.run for record in recorded(tmp_path)} == {job.id}


def test_a_finished_run_measures_nothing_again(tmp_path, kernels):
    tuning(tmp_path, kernels[1:3]).run()
    again = tuning(tmp_path, kernels[1:3])
    again.run()
    assert again.trials == again.resumed == 48
    assert len(recorded(tmp_path)) == 48


def test_another_seed_knows_what_the_first_run_found(tmp_path, kernels):
    tuning(tmp_path, kernels[1:2]).run()
    best = min(record.latency_s for record in recorded(tmp_path))
    other = tuning(tmp_path, kernels[1:2], seed=7, tuner="evolutionary-xgb", trials=16)
    other.run()
    assert other.resumed == 0
    assert other.states[0].fastest_s <= best
    tried = [record.candidate for record in recorded(tmp_path)]
    assert len(tried) == len(set(tried)) == 64


@pytest.mark.nightly
def test_the_cost_model_learns_of_other_kernels_too(tmp_path, kernels):
    tuning(tmp_path, kernels[1:2], trials=64).run()
    informed, guessing = tuning(tmp_path, kernels[3:4], tuner="evolutionary-xgb", trials=32), tmp_path / "alone"
    informed.run()
    guessing.mkdir()
    uninformed = tuning(guessing, kernels[3:4], tuner="evolutionary-xgb", trials=32)
    uninformed.run()
    later = {record.candidate for record in recorded(tmp_path) if record.run == informed.id}
    assert later != {record.candidate for record in recorded(guessing)}


def test_limits_of_a_task(tmp_path, kernels):
    job = tuning(tmp_path, kernels[1:3], trials=400, per_task=32)
    job.run()
    assert [state.planned for state in job.states] == [32, 32]
    assert job.ended == "--trials-per-task reached for 2 kernels"


def test_with_as_many_trials_as_first_rounds_take_every_task_is_measured(tmp_path, kernels):
    """That is what the report tells whoever asked for fewer."""
    chosen = kernels[1:4]
    job = tuning(tmp_path, chosen, trials=9)
    job.run()
    assert [state.measured for state in job.states] == [8, 1, 0]
    assert job.ended == "", "all trials were made"
    enough = tuning(tmp_path, chosen, trials=len(chosen) * job.first_batch)
    enough.run()
    assert [state.measured for state in enough.states] == [job.first_batch] * 3


def test_a_task_without_gain_is_left(tmp_path, kernels):
    job = tuning(tmp_path, kernels[1:2], trials=4000, early_stop=32)
    job.run()
    assert job.trials < 2000
    assert job.states[0].stale >= 32


def test_a_time_budget_ends_the_run(tmp_path, kernels):
    job = tuning(tmp_path, kernels[1:4], trials=100000, budget_s=0.5)
    job.run()
    assert 0 < job.trials < 2000


@pytest.mark.parametrize(
    ("builds", "measures", "message"),
    [(NoBuilds, FormulaMeasures, "no compiler"), (FormulaBuilds, Failing, "segmentation fault")],
)
def test_when_nothing_works_the_cause_is_told(tmp_path, kernels, builds, measures, message):
    (tmp_path / "libraries").mkdir()
    job = tuning(tmp_path, kernels[1:4], builds(tmp_path / "libraries"), measures(), trials=500)
    with pytest.raises(BuildError, match=r"none of \d+ candidates") as caught:
        job.run()
    assert message in caught.value.details
    assert 0 < job.trials < 120
    assert soon(lambda: len(recorded(tmp_path)) == job.trials, 30)


@pytest.mark.parametrize("modelled", ["", "g610, 4 cores, 1000 MHz"])
def test_boards_are_pointed_at_where_there_are_some(tmp_path, kernels, modelled):
    key = Key.of(target_table(backend().target), modelled=modelled)
    job = tuning(tmp_path, kernels[1:2], NoBuilds(tmp_path), trials=500, key=key)
    with pytest.raises(BuildError) as caught:
        job.run()
    assert "records show" in caught.value.hint
    assert ("farm status" in caught.value.hint) == (not modelled)


def test_what_was_measured_before_the_boards_were_lost_is_kept(tmp_path, kernels):
    job = tuning(tmp_path, kernels[1:4], measures=Gone(20), pace=UNDISTURBED)
    with pytest.raises(DeviceError, match="no board is left"):
        job.run()
    assert len(recorded(tmp_path)) == 20
    again = tuning(tmp_path, kernels[1:4], pace=UNDISTURBED)
    again.run()
    assert again.resumed == 20
    assert len(recorded(tmp_path)) == 48


class Coarse(FormulaMeasures):
    """Boards whose clock stands still."""

    def submit(self, _trial):
        future = Future()
        future.set_result(Measured((0.0, 0.0), board="board-1"))
        return future


def test_a_clock_that_is_too_coarse_is_told(tmp_path, kernels):
    with pytest.raises(BuildError) as caught:
        tuning(tmp_path, kernels[1:3], measures=Coarse()).run()
    assert "--min-repeat-ms" in caught.value.details
    assert {record.cause for record in recorded(tmp_path)} == {"suspicious"}


class Broken(FormulaBuilds):
    """A builder that cannot remove what it made."""

    def discard(self, built):
        raise PermissionError(f"{built.library} is not ours")


def test_a_fault_of_our_own_is_not_swallowed(tmp_path, kernels):
    (tmp_path / "libraries").mkdir()
    with pytest.raises(PermissionError, match="not ours"):
        tuning(tmp_path, kernels[1:3], Broken(tmp_path / "libraries")).run()


def test_records_that_cannot_be_written_stop_the_run(tmp_path, kernels):
    job = tuning(tmp_path, kernels[1:4])
    (tmp_path / "records.jsonl").mkdir()
    with pytest.raises(InputError):
        job.run()


def test_what_is_measured_is_what_a_build_makes_of_a_candidate(tmp_path, kernels, monkeypatch):
    monkeypatch.setattr(Backend, "add_half_blocks", lambda _self, module: module.with_attr("completed", 1))
    (tmp_path / "libraries").mkdir()
    builds = Remembering(tmp_path / "libraries")
    tuning(tmp_path, kernels[1:2], builds).run()
    assert builds.given
    assert all("completed" in (module.attrs or {}) for module in builds.given)


# --- finals ---


class Lying(FormulaMeasures):
    """Boards of which one candidate's search says that it takes no time; in turns it takes twice as long as any."""

    def __init__(self):
        super().__init__()
        self.liar = ""

    def _measure(self, name):
        if not crashes(name) and not self.liar:
            self.liar = name
        return Measured((6e-9,), board="liar") if name == self.liar else super()._measure(name)

    def latency_s(self, name):
        return 1e-3 if name == self.liar else super().latency_s(name)


def test_the_best_of_each_kernel_is_what_a_final_says(tmp_path, kernels):
    job = tuning(tmp_path, kernels[1:3], trials=40)
    job.run()
    assert {record.verdict for record in decided(tmp_path).values()} <= {"faster", "untuned"}
    for state in job.states:
        final = decided(tmp_path)[state.task.workload]
        assert final == state.decision
        base = job._search.base(state.task).key
        assert (final.among[0], len(final.among)) == (base, 4)
        assert (final.verdict == "untuned") == (final.candidate == base)
        assert statistics.median(final.base_s) >= final.latency_s
        best = min(
            (record for record in recorded(tmp_path) if record.workload == state.task.workload),
            key=lambda r: r.latency_s,
        )
        assert final.candidate in {best.candidate, base}


def test_the_luck_of_a_search_wins_no_final(tmp_path, kernels):
    measures = Lying()
    job = tuning(tmp_path, kernels[1:2], measures=measures)
    job.run()
    (final,) = decided(tmp_path).values()
    assert job.states[0].fastest_s == 6e-9
    assert final.latency_s > 1e-6
    assert final.candidate != measures.liar


class Impossible(FormulaMeasures):
    """Boards of which every candidate takes a picosecond, but for what is untuned."""

    def latency_s(self, _name):
        return 1e-12


def test_what_no_kernel_can_take_is_a_failure_whoever_measures(tmp_path, kernels):
    with pytest.raises(BuildError):
        tuning(tmp_path, kernels[1:2], measures=Impossible(), trials=500).run()
    assert {record.cause for record in recorded(tmp_path)} == {"crash", "suspicious"}


def test_a_final_is_held_once(tmp_path, kernels):
    tuning(tmp_path, kernels[1:3], trials=40).run()
    before = (tmp_path / "records.jsonl").read_bytes()
    again = tuning(tmp_path, kernels[1:3], trials=40)
    again.run()
    assert (tmp_path / "records.jsonl").read_bytes() == before
    assert all(state.decision for state in again.states)


class NoFinals(FormulaMeasures):
    """Boards that are lost in the finals."""

    def submit(self, trial):
        if not trial.rivals:
            return super().submit(trial)
        future = Future()
        future.set_exception(DeviceError("no board is left"))
        return future


def test_a_run_that_is_ended_in_its_finals_goes_on_there(tmp_path, kernels):
    with pytest.raises(DeviceError):
        tuning(tmp_path, kernels[1:3], measures=NoFinals(), trials=24).run()
    assert (len(recorded(tmp_path)), decided(tmp_path)) == (24, {})
    assert list((tmp_path / "libraries").iterdir()) == []
    again = tuning(tmp_path, kernels[1:3], trials=24)
    again.run()
    assert (again.resumed, len(decided(tmp_path))) == (24, 2)


def test_records_say_how_they_were_measured(tmp_path, kernels):
    job = tuning(tmp_path, kernels[1:2], trials=8)
    job.run()
    assert {(record.schema, record.threads, tuple(record.options)) for record in recorded(tmp_path)} == {
        (2, 0, tuple(USUAL))
    }


@pytest.mark.parametrize("other", [{"threads": 1}, {"options": {**USUAL, "min_repeat_ms": 0}}])
def test_what_was_measured_in_another_way_is_not_known(tmp_path, kernels, other):
    tuning(tmp_path, kernels[1:2], trials=16).run()
    key = Key.of(target_table(backend().target), **other)
    options = Options(min_repeat_ms=0) if "options" in other else Options()
    job = tuning(tmp_path, kernels[1:2], trials=16, key=key, options=options)
    job.run()
    assert (job.resumed, job.trials) == (0, 16)
    assert len(RecordFile(tmp_path / "records.jsonl").read().of(key)) == len(recorded(tmp_path)) == 16


def test_a_fresh_run_measures_all_anew_and_one_that_was_ended_goes_on_without_being_fresh(tmp_path, kernels):
    tuning(tmp_path, kernels[1:2], trials=24).run()
    with pytest.raises(DeviceError):
        tuning(tmp_path, kernels[1:2], measures=Gone(10), trials=24, fresh=True).run()
    again = tuning(tmp_path, kernels[1:2], trials=24)
    again.run()
    assert (again.resumed, again.trials) == (10, 24)
    assert len(recorded(tmp_path)) == 48
    finals = [record for record in RecordFile(tmp_path / "records.jsonl").read().trials if record.verdict]
    assert len(finals) == 2, "and so is the final"


def test_what_others_append_changes_nothing_for_a_run_that_goes_on(tmp_path, kernels):
    for name in ("alone", "shared"):
        (tmp_path / name).mkdir()
    xgb = {"tuner": "evolutionary-xgb", "trials": 64, "pace": UNDISTURBED}
    tuning(tmp_path / "alone", kernels[1:2], **xgb).run()
    with pytest.raises(DeviceError):
        tuning(tmp_path / "shared", kernels[1:2], measures=Gone(0), **xgb).run()
    tuning(tmp_path / "shared", kernels[1:2], seed=5, trials=40).run()
    mine = tuning(tmp_path / "shared", kernels[1:2], **xgb)
    mine.run()

    def tried(folder):
        return {(record.round, record.index, record.candidate) for record in recorded(folder) if record.run == mine.id}

    assert tried(tmp_path / "shared") == tried(tmp_path / "alone")


@pytest.mark.long
def test_a_run_that_goes_on_keeps_the_pace_that_it_began_with(tmp_path, kernels):
    for name in ("whole", "parts"):
        (tmp_path / name).mkdir()
    xgb, pace = {"tuner": "evolutionary-xgb", "trials": 160}, Pace(batch=32, ahead=64)
    tuning(tmp_path / "whole", kernels[1:2], pace=pace, **xgb).run()
    with pytest.raises(DeviceError):
        tuning(tmp_path / "parts", kernels[1:2], measures=Gone(70), pace=pace, **xgb).run()
    again = tuning(tmp_path / "parts", kernels[1:2], pace=UNDISTURBED, **xgb)
    again.run()
    assert again.resumed

    def tried(folder):
        return {(record.round, record.index, record.candidate) for record in recorded(folder)}

    assert tried(tmp_path / "parts") == tried(tmp_path / "whole")


# --- what a model rules out ---


def test_what_is_ruled_out_is_recorded_and_neither_built_nor_measured(tmp_path, kernels):
    builds = Remembering(tmp_path)
    job = pruning(tmp_path, kernels[1:2], builds=builds, trials=40)
    job.run()
    records = recorded(tmp_path)
    ruled_out = [record for record in records if record.cause in PRUNED]
    assert {record.cause for record in ruled_out} == PRUNED
    assert all("modelled (formula 1)" in record.error and not record.board for record in ruled_out)
    in_finals = sum(len(final.among) for final in decided(tmp_path).values())
    assert len(builds.given) - in_finals == len(records) - len(ruled_out) == 40 - len(ruled_out)
    (state,) = job.states
    assert (state.pruned, state.measured) == (len(ruled_out), 40)
    assert state.failed == job.causes["crash"]
    assert job.shares.seconds.keys() == {"search", "model", "build", "run", "finals"}


def test_a_run_that_goes_on_rules_out_the_same(tmp_path, kernels):
    (tmp_path / "whole").mkdir()
    (tmp_path / "parts").mkdir()
    pruning(tmp_path / "whole", kernels[1:3], trials=48).run()
    with pytest.raises(DeviceError):
        pruning(tmp_path / "parts", kernels[1:3], measures=Gone(9), trials=48).run()
    again = pruning(tmp_path / "parts", kernels[1:3], trials=48)
    again.run()
    assert again.resumed

    def outcomes(folder):
        return {(record.round, record.index): (record.candidate, record.cause) for record in recorded(folder)}

    assert outcomes(tmp_path / "whole") == outcomes(tmp_path / "parts")


def test_another_run_measures_what_one_ruled_out(tmp_path, kernels):
    pruning(tmp_path, kernels[1:2], trials=24).run()
    before = {record.candidate for record in recorded(tmp_path) if record.cause in PRUNED}
    job = tuning(tmp_path, kernels[1:2], trials=24)
    job.run()
    measured = {record.candidate for record in recorded(tmp_path) if record.run == job.id}
    assert before & measured
    assert not any(record.cause in PRUNED for record in recorded(tmp_path) if record.run == job.id)


def test_runs_that_rule_nothing_out_are_called_what_they_were(kernels):
    assert Plan().run_id(KEY, kernels) != Plan(prune=2.0).run_id(KEY, kernels)
    assert Plan().run_id(KEY, kernels[:1]) == Plan(prune=0.0).run_id(KEY, kernels[:1])


def test_another_model_rules_out_other_candidates(tmp_path, kernels):
    runs = {
        tuning(tmp_path, kernels, pruner=Pruner(FormulaCosts(identity=identity), 2.0), prune=2.0).id
        for identity in ("Mesa 1", "Mesa 2")
    }
    assert len(runs) == 2


def test_an_interrupt_that_a_step_takes_for_a_failure_ends_the_run_all_the_same(tmp_path, kernels, monkeypatch):
    """As compiled code does that calls Python back, or a step that goes on after any error."""

    def swallowed():
        with contextlib.suppress(KeyboardInterrupt):
            interrupts._end(signal.SIGINT, None)

    monkeypatch.setattr(interrupts, "_requests", [])
    job = tuning(tmp_path, kernels[1:2], trials=100000)
    job._on_tick = swallowed
    with pytest.raises(KeyboardInterrupt):
        job.run()
    assert recorded(tmp_path)
