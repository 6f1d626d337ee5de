"""A tuning session's parts: what is tuned, how it is planned, who is asked first, and what people see of it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
from types import SimpleNamespace

import pytest

from tests.support import nets, tuning_client
from tests.support.vta_nets import Net
from toolchain import board
from toolchain.backends.vta.backend import Vta
from toolchain.compile.request import BuildRequest
from toolchain.errors import DeviceError, InputError, VerificationError
from toolchain.farm.boards import BoardRequest, Boards
from toolchain.models import inputs
from toolchain.models.request import Model
from toolchain.pipeline import tune
from toolchain.records import Key, RecordFile, tasks
from toolchain.records.metaschedule import target_table
from toolchain.report import plain
from toolchain.rpc import hardware
from toolchain.rpc.hardware import Hardware
from toolchain.tuning import report as tune_report
from toolchain.tuning.measure import Event
from toolchain.tuning.plan import UNDISTURBED, Plan
from toolchain.tuning.run import Tuning
from toolchain.tuning.trials import Measured

LOCAL, RPI4 = board.load("local").resolved(), board.load("rpi4").resolved()
MLP = Model("mlp", {}, inputs.Source(None, None, 0))
TRIALS = 24


def nothing(_text: str) -> None:
    """For who wants to hear nothing."""


def boards_of(*names: str, emulated: bool = True) -> Boards:
    return Boards(tuple(SimpleNamespace(name=name, emulated=emulated) for name in names))


# --- what is tuned, and how ---


def test_what_there_is_to_tune():
    extracted = tune.extract(BuildRequest(MLP, RPI4))
    assert [task.operator for task in extracted.tasks] == ["reshape", "dense", "dense", "dense", "softmax"]
    assert extracted.imported.source.name == "mlp"
    assert extracted.backend.target.attrs["num-cores"] == RPI4.cores


def test_a_board_that_does_not_say_its_cores():
    with pytest.raises(InputError, match="rpi4 does not say how many cores") as caught:
        tune.extract(BuildRequest(MLP, dataclasses.replace(RPI4, cores=0)))
    assert caught.value.hint == "set `cores` in boards/rpi4.toml"


def test_searching_waits_for_measuring_on_this_machine_alone():
    plan = Plan(trials=7)
    assert tune.plan_for(LOCAL, plan) == dataclasses.replace(plan, pace=UNDISTURBED)
    assert tune.plan_for(RPI4, plan) is plan


# --- who is asked first ---


def examined(monkeypatch, **answers) -> tuple[list[str], list[str]]:
    """Examine boards that answer so; return which were asked, and what was told."""
    names, lines = [], []

    def examine(_board, lent):
        names.append(lent.name)
        answer = answers[lent.name]
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(hardware, "examine", examine)
    tune._examine(RPI4, boards_of(*answers), lines.append)
    return names, lines


def test_boards_say_what_they_are(monkeypatch):
    description = Hardware("aarch64", 4, "Cortex-A72")
    _, lines = examined(monkeypatch, a=(description, ()), b=(description, ("b is strange",)), c=(None, ()))
    assert lines == [
        "a: 4 CPUs, Cortex-A72",
        "b: 4 CPUs, Cortex-A72",
        "warning: b is strange",
        "c: a server of TVM itself, which does not say what it runs on",
    ]


def test_a_board_that_is_away_does_not_end_the_run(monkeypatch):
    names, lines = examined(monkeypatch, a=DeviceError("a is rebooting"), b=(None, ()))
    assert names == ["a", "b"]
    assert lines[0] == "warning: a: a is rebooting"


def test_without_any_board_it_ends(monkeypatch):
    with pytest.raises(DeviceError, match="a is gone"):
        examined(monkeypatch, a=DeviceError("a is gone"), b=DeviceError("b is gone"))


def test_a_wrong_board_ends_the_run(monkeypatch):
    with pytest.raises(VerificationError, match="a PDP-11"):
        examined(monkeypatch, a=(None, ()), b=VerificationError("b is a PDP-11"))


def test_records_that_are_none_are_told_before_the_boards_are_taken(tmp_path, monkeypatch):
    path = tmp_path / "notes"
    path.write_text("notes\n")
    monkeypatch.setattr(tune.farm_boards, "open_boards", lambda *_: pytest.fail("the boards were taken"))
    with pytest.raises(InputError, match="notes"):
        tune.run(tune.TuneRequest(MLP, BoardRequest(LOCAL), Plan(), records=path, toolchain="host"), nothing, nothing)


def test_a_finished_run_says_where_its_records_are_and_no_more(tmp_path):
    messages = []
    with tune._announce_end(SimpleNamespace(trials=3), RecordFile(tmp_path / "r.jsonl"), messages.append):
        pass
    assert messages == [f"3 trials of this run are in {tmp_path / 'r.jsonl'}"]


@pytest.mark.parametrize(("trials", "lines"), [(0, 0), (3, 1)])
def test_what_is_kept_is_told_if_something_is(tmp_path, trials, lines):
    messages = []
    with (
        pytest.raises(DeviceError),
        tune._announce_end(SimpleNamespace(trials=trials), RecordFile(tmp_path / "r.jsonl"), messages.append),
    ):
        raise DeviceError("no board is left")
    assert len(messages) == lines
    assert all("3 trials of this run are in" in line and "goes on from there" in line for line in messages)


# --- what people see ---


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """A run of mlp whose boards are a formula: some candidates crash."""
    folder = tmp_path_factory.mktemp("job")
    backend = tuning_client.backend()
    extracted = tasks.extract(tuning_client.lowered("mlp"), backend)
    tuning = Tuning(
        tasks.select(extracted, ["matmul"]),
        backend,
        Key.of(target_table(backend.target), emulated=True),
        file=RecordFile(folder / "records.jsonl"),
        plan=Plan(tuner="evolutionary-random", trials=TRIALS),
        builds=tuning_client.FormulaBuilds(folder),
        measures=tuning_client.FormulaMeasures(),
    )
    before = tune.live(tuning)
    tuning.run()
    return SimpleNamespace(before=before, done=tuning)


def test_the_table_before_the_first_trial(job):
    table, totals = job.before
    assert [row[1].text[:12] for row in table.rows] == ["fused_matmul"] * 3
    assert totals.startswith(f"Estimate: -  Trials: 0/{TRIALS}  Time: 0 s  ETA: -  Next task: -")


def test_the_table_at_the_end(job):
    text = plain(tune.live(job.done))
    assert f"Trials: {TRIALS}/{TRIALS}" in text
    assert "ETA: 0 s" in text
    assert text.splitlines()[-1].startswith("Estimate: ")
    assert "Estimate: -" not in text


def test_the_report(job):
    extracted = tune.extract(BuildRequest(MLP, RPI4))
    request = tune.TuneRequest(MLP, BoardRequest(RPI4), job.done.plan)
    counts = tune._BoardCounts(nothing, boards_of("a", "b"))
    trial = SimpleNamespace(name="matmul", rivals=())
    for event in (
        Event("started", "a", trial=trial),
        Event("ended", "a", trial=trial, measured=Measured((1e-3,))),
        Event("ended", "a", trial=trial, measured=Measured((), "crash", "SIGSEGV")),
        Event("ended", "a", trial=SimpleNamespace(name="final", rivals=(trial,)), measured=Measured((1e-3,))),
        Event("quarantined", "b", "gone"),
    ):
        counts.observe(event)
    key = Key.of(target_table(extracted.backend.target), emulated=True)
    report = tune._report(request, extracted, job.done, counts, key)
    states = job.done.states
    assert (report.model, report.board, report.emulated, report.trials, report.resumed) == ("mlp", "rpi4", True, 24, 0)
    assert [(row.name, row.trials, row.failed, row.quarantines) for row in report.boards] == [
        ("a", 2, 1, 0),
        ("b", 0, 0, 1),
    ]
    assert [row.id for row in report.tasks] == [1, 2, 3]
    assert [(row.trials, row.failed, row.best_s, row.verdict) for row in report.tasks] == [
        (state.measured, state.failed, state.decision.latency_s, state.decision.verdict) for state in states
    ]
    assert sum(report.causes.values()) == TRIALS
    assert report.points[-1].estimated_s == pytest.approx(job.done.estimated_s)
    assert set(report.shares) == {"search", "build", "run", "finals"}
    assert report.document()["target"]["num-cores"] == 4
    assert "mlp" in plain(tune_report.page(report).printed())
    assert [row.untuned_s for row in report.tasks] == [state.decision.base_latency_s for state in states]
    assert all(row.untuned_s >= row.best_s for row in report.tasks)
    assert {row.verdict for row in report.tasks} <= {"faster", "untuned"}
    assert [row.gbytes for row in report.tasks] == [
        pytest.approx(4e-9 * sum(math.prod(arg.shape) for arg in state.task.args)) for state in states
    ]


def test_a_task_without_a_latency_has_none_in_the_table(job):
    state = dataclasses.replace(job.done.states[0], fastest_s=math.inf, decision=None)
    assert tune._row(job.done, state).best_s is None


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (Event("started", "a"), None),
        (Event("ended", "a", measured=Measured((1e-3,))), None),
        (Event("lost", "a", "the connection broke"), "a: lost, the connection broke"),
        (Event("back", "a"), "a: back"),
        (Event("stock", "a", "TVM's own RPC server"), "warning: a: TVM's own RPC server"),
    ],
)
def test_what_a_person_should_know_of_boards_is_told(event, line):
    messages = []
    tune._BoardCounts(messages.append, boards_of("a")).observe(event)
    assert messages == ([] if line is None else [line])


# --- accelerators that are modelled ---


SIM = board.load("vta-sim").resolved()


@pytest.fixture(scope="module")
def quantized(tmp_path_factory):
    """A network of three layers for the array: one task twice, and another."""
    net = Net(16, 8)
    output = net.layer(net.layer(net.layer(net.rounded("x", 4), 16, 16, 3), 16, 16, 3), 16, 32)
    proto = net.proto(output)
    proto.graph.output[0].CopyFrom(nets.value(output, (1, 32, 8, 8)))
    return Model(nets.save(proto, tmp_path_factory.mktemp("quantized")), {}, inputs.Source())


@pytest.fixture
def request_of(quantized, tmp_path, monkeypatch):
    """Return a request's maker; no board is opened for it, and no compiler is asked to build."""
    monkeypatch.setattr(tune.farm_boards, "open_boards", lambda *_: pytest.fail("boards were opened"))
    monkeypatch.setattr(tune, "Builder", lambda *_, **_options: pytest.fail("candidates were linked"))

    def make(trials=32, **options):
        records = tmp_path / "r.jsonl"
        return tune.TuneRequest(
            quantized, BoardRequest(SIM), Plan(trials=trials), records=records, toolchain="host", **options
        )

    return make


def test_an_emulated_accelerator_is_tuned_by_its_model(request_of):
    messages, request = [], request_of()
    report = tune.run(request, messages.append, nothing)
    assert (report.emulated, report.trials, report.resumed, report.causes) == (True, 32, 0, {"ok": 32})
    assert [(row.name, row.trials, row.failed) for row in report.boards] == [("model hls-pynq", 32, 0)]
    assert [(row.operator, row.weight) for row in report.tasks] == [("vta_conv2d", 2), ("vta_conv2d", 1)]
    assert any("2 tasks of the accelerator" in line and "modelled, not measured" in line for line in messages)
    assert any("tasks of the CPU are left as they are" in line for line in messages)
    model = Vta(SIM).machine_model
    layers = {task.workload: task.layer for task in tune.extract(BuildRequest(request.model, SIM)).tasks}
    for trial in RecordFile(request.records).read().trials:
        cycles = model.cycles(layers[trial.workload], json.loads(trial.trace)).cycles
        assert trial.samples_s == pytest.approx((cycles * 1e-8,) * len(trial.samples_s))
        assert (trial.emulated, trial.board, bool(trial.verdict)) == (True, "hls-pynq", len(trial.samples_s) > 1)


def test_an_accelerator_that_is_there_is_measured(request_of, monkeypatch):
    """Its board file says that its times are real ones."""
    request = dataclasses.replace(request_of(), boards=BoardRequest(dataclasses.replace(SIM, emulated=False)))

    def opened(*_):
        raise DeviceError("the boards were asked")

    monkeypatch.setattr(tune, "Builder", lambda *_, **_options: contextlib.nullcontext())
    monkeypatch.setattr(tune.farm_boards, "open_boards", opened)
    with pytest.raises(DeviceError, match="the boards were asked"):
        tune.run(request, nothing, nothing)


def test_a_resumed_run_asks_the_model_for_the_rest_alone(request_of):
    first = tune.run(request_of(16), nothing, nothing)
    again = tune.run(request_of(16), nothing, nothing)
    assert (again.trials, again.resumed, again.boards[0].trials) == (16, 16, 0)
    assert again.estimated_s == first.estimated_s
    more = tune.run(request_of(24), nothing, nothing)
    assert (more.trials, more.resumed, more.boards[0].trials) == (24, 16, 8)


# How many tasks the CPU has depends on whether it multiplies bytes.
@pytest.mark.parametrize("options", [{"operators": ("0",)}, {"without": ("vta",)}])
def test_tasks_of_the_cpu_alone_are_refused(request_of, options):
    request = request_of(**options)
    with pytest.raises(InputError, match=r"vta-sim computes none of the \d chosen tasks") as caught:
        tune.run(request, nothing, nothing)
    assert "toolchain tasks" in caught.value.hint
    assert "hls-pynq knows the accelerator alone" in caught.value.details
    assert not request.records.exists()
