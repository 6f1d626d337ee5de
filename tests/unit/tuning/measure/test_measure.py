"""Which failures are the board's or the candidate's, what is repeated, and when boards rest: on fake boards."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Self

import pytest

from toolchain.errors import BusyError, DeviceError, InputError, VerificationError
from toolchain.rpc import CallError, server
from toolchain.tuning.measure import MeasurePool, Rules, calls
from toolchain.tuning.measure import trial as measure_session
from toolchain.tuning.measure.health import Pulse
from toolchain.tuning.measure.trial import Taken
from toolchain.tuning.measure.turns import TURNS
from toolchain.tuning.trials import Options, Rival, Trial

OPTIONS = Options(timeout_s=0.2)
RULES = Rules(
    open_s=1.0,
    slack_s=0.1,
    grace_s=0.1,
    answer_s=0.2,
    canary_s=0.2,
    canary_trials=4,
    canary_every_s=1000.0,
    probe_s=(0.01, 0.05),
    patience_s=0.5,
    cool_s=(0.01, 0.02),
    cool_total_s=0.1,
)
CRASH = CallError(
    "RPCError", "RPCError: Error caught from RPC call:\nthe session's process was ended by signal 11 (SIGSEGV)"
)
TIMEOUT = CallError(
    "RPCSessionTimeoutError", "RPCSessionTimeoutError: session timeout of 5 s reached; the client set it"
)
REFUSED = CallError("RPCError", "RPCError: Error caught from RPC call:\nValueError: no")
GONE = CallError("InternalError", "Channel closes before we get needed bytes")
SILENCE = DeviceError("the board says nothing")


class FakeSession:
    """A session on a fake board."""

    def __init__(self, board: FakeBoard) -> None:
        self.board = board
        self.place = board.name
        self.stock = board.stock
        self.ended = threading.Event()
        board.open_sessions += 1

    def cut(self) -> None:
        self.ended.set()

    def close(self) -> None:
        self.board.open_sessions -= 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def answers(self, _timeout_s: float) -> bool:
        return self.board.alive


@dataclasses.dataclass(eq=False)
class FakeBoard:
    """A place with scripted results.

    Attributes:
        results: What each trial, by name, does in turn: samples, or an error to raise; the last one stays.
        canaries: Seconds that the canary takes in turn; the last one stays.
        deadly: Trials after which the board is dead.
        peak_gflops: What it computes at most.
        orders: Who was measured in each turn of a final.
    """

    name: str
    emulated: bool = True
    stock: bool = False
    alive: bool = True
    results: dict[str, list[object]] = dataclasses.field(default_factory=dict)
    canaries: list[float | None] = dataclasses.field(default_factory=lambda: [1.0])
    celsius: list[float | None] = dataclasses.field(default_factory=lambda: [None])
    deadly: set[str] = dataclasses.field(default_factory=set)
    fault: Exception | None = None
    closed: bool = False
    open_sessions: int = 0
    peak_gflops: float = 0.0
    orders: list[list[int]] = dataclasses.field(default_factory=list)
    runs: Counter[str] = dataclasses.field(default_factory=Counter)
    began: dict[str, list[float]] = dataclasses.field(default_factory=lambda: defaultdict(list))

    def open(self, _timeout_s: float, _session_s: float, _stop: threading.Event) -> FakeSession:
        if self.fault:
            raise self.fault
        if not self.alive:
            raise DeviceError(f"{self.name} is dead")
        return FakeSession(self)

    def close(self) -> None:
        self.closed = True

    def run(self, session: FakeSession, name: str):
        self.runs[name] += 1
        self.began[name].append(time.monotonic())
        does = self.results.get(name, [(1.0,)])
        result = does.pop(0) if len(does) > 1 else does[0]
        if name in self.deadly:
            self.alive = False
        if result == "hang":
            assert session.ended.wait(20)
            raise GONE
        if isinstance(result, Exception):
            raise result
        return result


def taken(ran):
    """Return what a board answers with; some tests say how long its kernels had to wait."""
    return ran if isinstance(ran, Taken) else Taken((ran,))


def first_of(values):
    return values.pop(0) if len(values) > 1 else values[0]


@pytest.fixture(autouse=True)
def pretended(monkeypatch):
    def measured(session, trial, options, spread, budget_s):
        return taken(session.board.run(session, trial.library.stem))

    def turn(session, trial, options, order):
        libraries = [trial.library, *(rival.library for rival in trial.rivals)]
        session.board.orders.append(list(order))
        ran = {index: session.board.run(session, libraries[index].stem) for index in order}
        return Taken(tuple(ran.get(index, ()) for index in range(len(libraries))))

    def pulse(session, milliseconds):
        board = session.board
        if not board.alive:
            raise GONE
        return Pulse(session.place, first_of(board.canaries), first_of(board.celsius))

    monkeypatch.setattr(measure_session, "measure_trial", measured)
    monkeypatch.setattr(measure_session, "measure_turn", turn)
    monkeypatch.setattr(measure_session, "measure_peak", lambda session: session.board.peak_gflops)
    monkeypatch.setattr(measure_session, "take_pulse", pulse)
    monkeypatch.setattr(measure_session, "send_file", lambda _: None)


@pytest.fixture
def trial(tmp_path):
    def make(name: str = "good") -> Trial:
        path = tmp_path / f"{name}.so"
        path.touch()
        return Trial(path, ())

    return make


@pytest.fixture
def make_pool():
    """Return a function that makes a pool; the pools are closed in the end, and leave no thread and no session."""
    before = threading.active_count()
    pools = []

    def make(*boards: FakeBoard, rules: Rules = RULES, options: Options = OPTIONS) -> MeasurePool:
        events = []
        pool = MeasurePool(boards, options, events.append, rules)
        pool.events = events
        pools.append((pool, boards))
        return pool

    yield make
    for pool, boards in pools:
        pool.close()
        assert [board.open_sessions for board in boards] == [0] * len(boards)
    assert threading.active_count() <= before  # threads of an earlier test may end meanwhile


def until(condition) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def kinds(pool: MeasurePool, *left_out: str) -> list[str]:
    return [event.kind for event in list(pool.events) if event.kind not in left_out]


# --- results ---------------------------------------------------------------------------------------------------------


def test_results_come_in_the_order_of_the_trials(make_pool, trial):
    board = FakeBoard("one", results={f"t{n}": [(float(n + 1),)] for n in range(9)})
    results = make_pool(board).measure([trial(f"t{n}") for n in range(9)])
    assert [result.samples_s for result in results] == [(float(n + 1),) for n in range(9)]
    assert {(result.board, result.attempts, result.cause) for result in results} == {("one", 1, "")}


def test_every_board_gets_its_share(make_pool, trial):
    boards = [FakeBoard(f"board{number}", results={"nap": ["hang"]}) for number in range(3)]
    pool = make_pool(*boards, options=dataclasses.replace(OPTIONS, timeout_s=60))
    for _ in boards:
        pool.submit(trial("nap"))
    until(lambda: [board.runs["nap"] for board in boards] == [1, 1, 1])


def test_a_board_rests_between_two_trials(make_pool, trial):
    board = FakeBoard("one")
    make_pool(board, options=dataclasses.replace(OPTIONS, cooldown_s=0.2)).measure([trial(), trial()])
    first, second = board.began["good"]
    assert second - first >= 0.2


def test_a_kernel_that_takes_no_time_is_a_lie(make_pool, trial):
    [result] = make_pool(FakeBoard("one", results={"good": [(0.0, 1.0)]})).measure([trial()])
    assert (result.cause, result.samples_s) == ("suspicious", ())


def test_what_happens_is_told(make_pool, trial):
    pool = make_pool(FakeBoard("one"))
    [result] = pool.measure([trial()])
    until(lambda: len(pool.events) == 2)
    started, ended = pool.events
    assert (started.kind, started.place, started.trial) == ("started", "one", trial())
    assert (ended.kind, ended.measured) == ("ended", result)


def test_a_hundred_boards_measure_at_once(make_pool, trial):
    boards = [FakeBoard(f"board{number}", results={"nap": ["hang"]}) for number in range(100)]
    pool = make_pool(*boards, options=dataclasses.replace(OPTIONS, timeout_s=60))
    for _ in boards:
        pool.submit(trial("nap"))
    until(lambda: all(board.runs["nap"] == 1 for board in boards))


@pytest.mark.parametrize("names", [[], ["a", "a"]])
def test_places_that_cannot_be(names):
    with pytest.raises(InputError, match="different names"):
        MeasurePool([FakeBoard(name) for name in names], OPTIONS)


# --- whose fault it is -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "cause", "message"),
    [
        (CRASH, "crash", "SIGSEGV"),
        (TIMEOUT, "timeout", "session timeout of 5 s"),
        (REFUSED, "refused", "ValueError: no"),
    ],
)
def test_a_failure_that_the_server_tells_is_the_candidates_if_the_board_is_well(
    make_pool, trial, fault, cause, message
):
    board = FakeBoard("one", results={"bad": [fault]})
    pool = make_pool(board)
    bad, good = pool.measure([trial("bad"), trial()])
    assert (bad.cause, bad.samples_s, bad.attempts, bad.board) == (cause, (), 1, "one")
    assert message in bad.error
    assert "RPC call" not in bad.error
    assert good.samples_s
    assert board.runs["bad"] == 1
    assert set(kinds(pool)) == {"started", "ended"}


@pytest.mark.parametrize("fault", [CRASH, TIMEOUT, REFUSED, GONE, SILENCE], ids=lambda fault: type(fault).__name__)
def test_a_failure_is_the_boards_if_the_board_is_not_well(make_pool, trial, fault):
    first = FakeBoard("first", results={"good": [fault]}, deadly={"good"})
    pool = make_pool(first)
    future = pool.submit(trial())
    until(lambda: "lost" in kinds(pool))
    assert not future.done()
    first.results.clear()
    first.deadly.clear()
    first.alive = True
    result = future.result(20)
    assert (result.samples_s, result.attempts) == ((1.0,), 2)
    assert (
        kinds(pool, "quarantined") == ["started", "lost", "back", "started", "ended"] or kinds(pool).count("lost") > 1
    )


@pytest.mark.parametrize("fault", [GONE, SILENCE], ids=["gone", "silence"])
def test_a_failure_that_our_server_does_not_tell_is_not_the_candidates(make_pool, trial, fault):
    """The board was lost and is back already, or it stood still for a while."""
    board = FakeBoard("one", results={"good": [fault, (1.0,)]})
    pool = make_pool(board)
    [result] = pool.measure([trial()])
    assert (result.samples_s, result.attempts) == ((1.0,), 2)
    assert "it works again" in next(event.detail for event in pool.events if event.kind == "lost")


@pytest.mark.parametrize(("fault", "cause"), [(GONE, "crash"), (SILENCE, "timeout")], ids=["gone", "silence"])
def test_tvms_own_server_never_tells(make_pool, trial, fault, cause):
    board = FakeBoard("one", stock=True, emulated=False, results={"bad": [fault]})
    pool = make_pool(board)
    [result] = pool.measure([trial("bad")])
    assert (result.cause, result.attempts) == (cause, 1)
    assert kinds(pool) == ["stock", "started", "ended"]


def test_a_board_that_says_nothing_is_cut(make_pool, trial):
    board = FakeBoard("one", results={"good": ["hang", (1.0,)]})
    start = time.monotonic()
    [result] = make_pool(board).measure([trial()])
    assert result.attempts == 2
    assert 0.6 <= time.monotonic() - start < 30  # three times the slack, since it is emulated


@pytest.mark.parametrize("count", [1, 4])
def test_a_killer_is_found_out(make_pool, trial, count):
    boards = [FakeBoard(f"board{number}", results={"bad": [GONE]}, deadly={"bad"}) for number in range(count)]
    pool = make_pool(*boards, rules=dataclasses.replace(RULES, patience_s=60))
    future = pool.submit(trial("bad"))
    ended = threading.Event()

    def revive():
        while not ended.wait(0.02):
            for board in boards if count == 1 else []:
                board.alive = True

    thread = threading.Thread(target=revive)
    thread.start()
    result = future.result(20)
    ended.set()
    thread.join()
    assert (result.cause, result.attempts) == ("crash", 3)
    assert "3 boards failed with it" in result.error
    assert sum(board.runs["bad"] for board in boards) == 3


def test_a_board_that_cannot_be_reached_costs_a_trial_no_attempt(make_pool, trial):
    board = FakeBoard("one", alive=False)
    pool = make_pool(board, rules=dataclasses.replace(RULES, patience_s=60))
    future = pool.submit(trial())
    until(lambda: "quarantined" in kinds(pool))
    board.alive = True
    assert future.result(20).attempts == 1
    assert kinds(pool) == ["lost", "lost", "quarantined", "back", "started", "ended"]


def test_a_library_that_is_missing_is_the_callers_fault(make_pool, trial):
    pool = make_pool(FakeBoard("one"))
    future = pool.submit(Trial(Path("nowhere.so"), ()))
    with pytest.raises(FileNotFoundError):
        future.result(20)
    assert pool.measure([trial()])[0].samples_s


def test_options_that_do_not_fit_end_it(make_pool, trial):
    board = FakeBoard("one", results={"good": [InputError("the board cannot run kernels on 9 threads")]})
    with pytest.raises(InputError, match="9 threads"):
        make_pool(board).measure([trial()])


def test_a_fault_of_our_own_is_heard(trial):
    def stumble(event):
        raise KeyError(event.kind)

    with MeasurePool([FakeBoard("one")], OPTIONS, stumble, RULES) as pool:
        with pytest.raises(KeyError):
            pool.submit(trial()).result(20)
        until(lambda: pool.submit(trial()).done())


# --- no board --------------------------------------------------------------------------------------------------------


def test_without_a_board_trials_are_given_up_with_the_reasons(make_pool, trial):
    pool = make_pool(
        FakeBoard("first", alive=False), FakeBoard("second", fault=DeviceError("no tracker", details="a\nrefused"))
    )
    start = time.monotonic()
    with pytest.raises(DeviceError, match="no board has been available") as caught:
        pool.measure([trial()] * 3)
    assert 0.5 <= time.monotonic() - start < 60
    assert caught.value.details == "first: first is dead\nsecond: no tracker: refused"
    assert "farm status" in caught.value.hint


def test_patience_lasts_while_one_board_is_well(make_pool, trial):
    slow = FakeBoard("well", results={"nap": ["hang"]})
    pool = make_pool(FakeBoard("dead", alive=False), slow, options=dataclasses.replace(OPTIONS, timeout_s=60))
    nap = pool.submit(trial("nap"))
    until(lambda: slow.runs["nap"] == 1)
    other = pool.submit(trial())
    time.sleep(2 * RULES.patience_s)
    assert not other.done()
    assert not nap.done()


def test_patience_begins_anew_when_a_board_was_back(make_pool, trial):
    board = FakeBoard("one", alive=False)
    pool = make_pool(board, rules=dataclasses.replace(RULES, patience_s=1.0))
    for _ in range(2):
        future = pool.submit(trial())
        until(lambda: kinds(pool)[-1:] == ["quarantined"])
        time.sleep(0.6)
        assert not future.done()
        board.alive = True
        assert future.result(20).samples_s
        until(lambda: kinds(pool)[-1:] == ["ended"])
        board.alive = False


def test_boards_of_another_version_need_no_patience(make_pool, trial):
    pool = make_pool(
        FakeBoard("one", fault=VerificationError("the board server has TVM 0.26")),
        rules=dataclasses.replace(RULES, patience_s=600),
    )
    with pytest.raises(DeviceError) as caught:
        pool.measure([trial()])
    assert caught.value.details == "one: the board server has TVM 0.26"


# --- heat ------------------------------------------------------------------------------------------------------------


def test_trials_of_a_throttled_board_are_measured_again(make_pool, trial):
    """Canaries: before the first trial, well; after four more, slow, and slow again; then cooled down, then well."""
    board = FakeBoard("one", emulated=False, canaries=[1.0, 1.3, 1.3, 1.3, 1.3, 1.0])
    pool = make_pool(board)
    results = pool.measure([trial(f"t{number}") for number in range(5)])
    assert [board.runs[f"t{number}"] for number in range(5)] == [2, 2, 2, 2, 1]
    assert all(result.samples_s for result in results)
    events = kinds(pool, "started", "ended")
    assert events == ["cooling", "cooling", "cooled"]
    assert "30 % slower" in next(event.detail for event in pool.events if event.kind == "cooling")


def test_results_wait_for_the_canary_and_no_longer(make_pool, trial):
    board = FakeBoard("one", emulated=False)
    pool = make_pool(board)
    assert pool.measure([trial()])[0].samples_s
    assert pool.measure([trial()] * 7)[0].samples_s
    assert board.runs["good"] == 8
    assert set(kinds(pool)) == {"started", "ended"}


def test_one_slow_canary_is_no_throttling(make_pool, trial):
    board = FakeBoard("one", emulated=False, canaries=[1.0, 1.3, 1.0])
    pool = make_pool(board)
    pool.measure([trial()] * 5)
    assert board.runs["good"] == 5
    assert "cooling" not in kinds(pool)


def test_a_hot_board_rests(make_pool, trial):
    board = FakeBoard("one", emulated=False, celsius=[85.0, 85.0, 60.0])
    pool = make_pool(board)
    pool.measure([trial()])
    assert kinds(pool) == ["cooling", "cooled", "started", "ended"]
    assert pool.events[0].detail.startswith("85 C")


def test_a_board_that_stays_slow_does_not_rest_for_ever(make_pool, trial):
    board = FakeBoard("one", emulated=False, canaries=[1.0, 2.0])
    pool = make_pool(board)
    pool.measure([trial(f"t{number}") for number in range(6)])
    assert kinds(pool, "started", "ended", "cooling") == ["slower"]
    assert max(board.runs.values()) == 2


def test_a_board_that_throttles_each_time_ends_nevertheless(make_pool, trial):
    board = FakeBoard("one", emulated=False, canaries=[1.0, *[1.3, 1.3, 1.0] * 40])
    pool = make_pool(board)
    pool.measure([trial(f"t{number}") for number in range(4)])
    assert max(board.runs.values()) <= RULES.again + 1


@pytest.mark.parametrize("kind", [{"emulated": True}, {"emulated": False, "stock": True, "canaries": [None]}])
def test_clocks_that_mean_nothing_are_not_looked_at(make_pool, trial, kind):
    board = FakeBoard("one", celsius=[None], **{"canaries": [1.0, 9.0], **kind})
    pool = make_pool(board)
    pool.measure([trial()] * 12)
    assert "cooling" not in kinds(pool)
    assert board.runs["good"] == 12


def test_a_board_lost_while_it_rests_is_a_lost_board(make_pool, trial):
    board = FakeBoard("one", emulated=False, canaries=[1.0, 2.0])
    pool = make_pool(board, rules=dataclasses.replace(RULES, cool_total_s=1000, patience_s=60))
    futures = [pool.submit(trial(f"t{number}")) for number in range(5)]
    until(lambda: "cooling" in kinds(pool))
    board.alive = False
    until(lambda: "lost" in kinds(pool))
    board.canaries[:] = [1.0]
    board.alive = True
    assert all(future.result(20).samples_s for future in futures)


# --- what is doubtful ------------------------------------------------------------------------------------------------


def test_what_is_faster_than_the_board_can_be_is_measured_again(make_pool, trial):
    board = FakeBoard("one", emulated=False, peak_gflops=100.0, results={"good": [(1e-6,), (1e-2,)]})
    [result] = make_pool(board).measure([dataclasses.replace(trial(), gflop=1.0)])
    assert (result.samples_s, result.cause, board.runs["good"]) == ((1e-2,), "", 2)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ((1e-12,), "is shorter than any call can be"),
        ((1e-6,), "GFLOPS, but the board reaches at most 100"),
        ((1e-2, 9e-2, 9e-2), "half of the samples took 9.0 times as long as the fastest"),
        (Taken(((1e-2,),), waited=0.99), "other work used the CPUs for 99% of the kernel"),
    ],
)
def test_what_stays_doubtful_has_failed(make_pool, trial, result, message):
    board = FakeBoard("one", emulated=False, peak_gflops=100.0, results={"good": [result]})
    [measured] = make_pool(board).measure([dataclasses.replace(trial(), gflop=1.0)])
    assert (measured.samples_s, measured.cause) == ((), "suspicious")
    assert message in measured.error
    assert board.runs["good"] == RULES.again + 1


def test_a_trial_whose_board_throttles_each_time_has_failed(make_pool, trial):
    board = FakeBoard("one", emulated=False, canaries=[1.0, *[1.3, 1.3, 1.0] * 40])
    results = make_pool(board).measure([trial(f"t{number}") for number in range(4)])
    assert {result.cause for result in results} == {"suspicious"}
    assert all("slower than before" in result.error for result in results)


def final_of(trial, *names):
    return dataclasses.replace(trial(names[0]), rivals=tuple(Rival(trial(name).library, ()) for name in names[1:]))


def test_a_final_takes_its_turns_on_one_board_each_in_a_session_of_its_own(make_pool, trial):
    boards = [FakeBoard(name, results={"base": [(3.0, 5.0)], "fast": [(2.0,)]}) for name in ("one", "two")]
    [final] = make_pool(*boards).measure([final_of(trial, "base", "fast")])
    assert (final.samples_s, final.rivals_s, final.cause) == ((4.0,) * TURNS, ((2.0,) * TURNS,), "")
    assert sorted(board.runs["base"] for board in boards) == [0, TURNS]
    orders = boards[0].orders or boards[1].orders
    assert orders[:2] == [[0, 1], [1, 0]]


def test_a_final_ends_when_nobody_has_prospects(make_pool, trial):
    board = FakeBoard("one", results={"base": [(1.0,)], "slow": [(2.0,)]})
    [final] = make_pool(board).measure([final_of(trial, "base", "slow")])
    assert len(final.samples_s) == len(final.rivals_s[0]) < TURNS / 2


def test_a_final_whose_candidate_fails_has_failed(make_pool, trial):
    board = FakeBoard("one", results={"base": [(1.0,)], "bad": [(0.5,), CallError("RPCError", "ValueError: no")]})
    [final] = make_pool(board).measure([final_of(trial, "base", "bad")])
    assert (final.cause, final.samples_s, final.rivals_s) == ("refused", (), ())


# --- the end ---------------------------------------------------------------------------------------------------------


def test_closing_cancels_what_waits_and_what_runs(make_pool, trial):
    board = FakeBoard("one", results={"good": ["hang"]})
    pool = make_pool(board, options=dataclasses.replace(OPTIONS, timeout_s=600))
    futures = [pool.submit(trial()) for _ in range(3)]
    until(lambda: board.runs["good"] == 1)
    start = time.monotonic()
    pool.close()
    assert time.monotonic() - start < 30
    assert all(future.cancelled() for future in futures)
    assert pool.submit(trial()).cancelled()


def test_closing_ends_the_rest_of_a_board(make_pool, trial):
    rules = dataclasses.replace(RULES, cool_s=(600.0, 600.0), probe_s=(600.0, 600.0), patience_s=600.0)
    hot = make_pool(FakeBoard("hot", emulated=False, celsius=[99.0]), rules=rules)
    dead = make_pool(FakeBoard("dead", alive=False), rules=rules)
    futures = [pool.submit(trial()) for pool in (hot, dead)]
    until(lambda: kinds(hot) == ["cooling"] and kinds(dead) == ["lost"])
    start = time.monotonic()
    hot.close()
    dead.close()
    assert time.monotonic() - start < 30
    assert all(future.cancelled() for future in futures)


def test_what_nobody_waits_for_is_not_measured(make_pool, trial):
    board = FakeBoard("one", results={"nap": ["hang"]})
    pool = make_pool(board, options=dataclasses.replace(OPTIONS, timeout_s=60))
    pool.submit(trial("nap"))
    until(lambda: board.runs["nap"] == 1)
    assert pool.submit(trial()).cancel()
    pool.close()
    assert board.runs["good"] == 0


# --- one session -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("takes", "budget_s", "expected", "count"),
    [
        ([(1.0, 1.2), (0.1, 0.1)], 10, (1.0, 1.2), 1),
        ([(1.0, 1.8), (1.1, 1.2)], 10, (1.1, 1.2), 2),
        ([(1.0, 1.0, 1.8), (1.1, 1.2, 1.2)], 10, (1.0, 1.0, 1.8), 2),
        ([(1.0, 1.8), (1.1, 1.2)], 0, (1.0, 1.8), 1),
    ],
    ids=["close together", "far apart", "the second is no better", "no time"],
)
def test_samples_that_differ_much_are_taken_again(takes, budget_s, expected, count):
    samples = iter(takes)
    result = calls._sample(lambda: next(samples), 1.5, budget_s)
    assert result == expected
    assert len(takes) - len(list(samples)) == count


@pytest.mark.parametrize(
    ("fault", "cause", "reported"),
    [
        (CRASH, "crash", True),
        (
            CallError("RPCError", "Error caught from RPC call:\nthe session's process ended by itself with code 7"),
            "crash",
            True,
        ),
        (TIMEOUT, "timeout", True),
        (REFUSED, "refused", True),
        (SILENCE, "timeout", False),
        (GONE, "crash", False),
        (
            CallError("InternalError", "Check failed: (code == kReturn) is false: code=kShutdown"),
            "crash",
            False,
        ),
        (CallError("InternalError", "Check failed: (code == RPCCode::kReturn) is false: code=1"), "crash", False),
        (CallError("RPCError", f"{server.SESSION_CUT}; it wants it back"), "crash", False),
        (CallError("InternalError", "Socket SockChannel::Recv Error:Connection reset by peer"), "crash", False),
        (CallError("InternalError", "Check failed: ndim"), "refused", True),
    ],
)
def test_what_a_failure_means(fault, cause, reported):
    failure = measure_session.failure(fault)
    assert (failure.cause, failure.reported) == (cause, reported)
    assert failure.error


def test_a_board_that_attacks_is_left_out_for_good(make_pool, trial, monkeypatch):
    """Its trial is run on another board, and nobody waits for it to become well again."""
    evil = FakeBoard("evil", results={"good": [VerificationError("evil tried to make this host run code")]})
    well, attacked = FakeBoard("well"), threading.Event()
    monkeypatch.setattr(evil, "run", lambda *arguments: attacked.set() or FakeBoard.run(evil, *arguments))
    # On a busy machine, one board may measure all trials before the other has begun.
    monkeypatch.setattr(well, "run", lambda *arguments: attacked.wait(20) and FakeBoard.run(well, *arguments))
    pool = make_pool(evil, well)
    results = pool.measure([trial() for _ in range(6)])
    assert {result.board for result in results} == {"well"}
    assert any("tried to make this host" in event.detail for event in pool.events if event.place == "evil")


@pytest.mark.parametrize(
    "fault", [BusyError("the lease of one was ended by its owner"), VerificationError("another TVM")]
)
def test_a_board_that_is_gone_for_good_is_not_waited_for(make_pool, trial, fault):
    pool = make_pool(FakeBoard("one", fault=fault), rules=dataclasses.replace(RULES, patience_s=600.0))
    start = time.monotonic()
    with pytest.raises(DeviceError, match="no board has been available") as caught:
        pool.measure([trial()])
    assert time.monotonic() - start < 60
    assert fault.message in caught.value.details


# --- boards that come and go ------------------------------------------------------------------------------------------


def test_a_board_that_joins_measures(make_pool, trial):
    first, late = FakeBoard("first", results={"nap": ["hang"]}), FakeBoard("late")
    pool = make_pool(first, options=dataclasses.replace(OPTIONS, timeout_s=60))
    pool.submit(trial("nap"))
    until(lambda: first.runs["nap"])
    threads: list[str] = []
    pool.add(late, lambda: threads.append(threading.current_thread().name) or True)
    assert pool.measure([trial()])[0].board == "late"
    assert threads == ["measure-late"]
    pool.close()
    assert late.closed


def test_nothing_is_measured_on_a_board_that_does_not_fit(make_pool, trial):
    pool, late = make_pool(FakeBoard("first")), FakeBoard("late")
    checked = threading.Event()
    pool.add(late, lambda: bool(checked.set()))
    assert checked.wait(20)
    assert {result.board for result in pool.measure([trial() for _ in range(5)])} == {"first"}
    assert not late.runs


def test_a_board_is_left_after_its_trial_whose_result_counts(make_pool, trial):
    slow, begun, go = FakeBoard("slow"), threading.Event(), threading.Event()
    slow.results["nap"] = [(1.0,)]
    run = slow.run

    def napping(session, name):
        begun.set()
        assert go.wait(20)
        return run(session, name)

    slow.run = napping
    pool, retired = make_pool(slow, rules=dataclasses.replace(RULES, patience_s=60)), threading.Event()
    first, second = pool.submit(trial("nap")), pool.submit(trial())
    assert begun.wait(20)
    pool.retire("slow", retired.set)
    pool.retire("nobody", retired.set)
    assert not retired.is_set()
    go.set()
    assert retired.wait(20)
    assert slow.closed
    assert first.result(20).samples_s
    assert not second.done()
    pool.add(FakeBoard("other"), lambda: True)
    assert second.result(20).board == "other"


def test_what_was_held_back_is_measured_by_others_if_the_board_that_leaves_is_slow(make_pool, trial):
    leaving = FakeBoard("leaving", emulated=False, canaries=[1.0, 9.0])
    options = dataclasses.replace(OPTIONS, cooldown_s=60)
    pool, retired = (
        make_pool(leaving, options=options, rules=dataclasses.replace(RULES, patience_s=60)),
        threading.Event(),
    )
    future = pool.submit(trial())
    until(lambda: "ended" in kinds(pool))
    assert not future.done()
    pool.retire("leaving", retired.set)
    assert retired.wait(20)
    pool.add(FakeBoard("other"), lambda: True)
    assert future.result(20).board == "other"


def test_what_was_held_back_counts_if_the_board_that_leaves_cannot_be_asked_any_more(make_pool, trial):
    leaving = FakeBoard("leaving", emulated=False)
    pool, retired = make_pool(leaving, options=dataclasses.replace(OPTIONS, cooldown_s=60)), threading.Event()
    future = pool.submit(trial())
    until(lambda: "ended" in kinds(pool))
    leaving.alive = False
    pool.retire("leaving", retired.set)
    assert retired.wait(20)
    assert future.result(20).board == "leaving"


def test_a_board_that_was_lost_and_joins_again_takes_the_place_of_the_one_before(make_pool, trial):
    lost = FakeBoard("one", fault=BusyError("the lease of one was ended by its owner"))
    pool = make_pool(lost, FakeBoard("two"))
    pool.submit(trial())
    until(lambda: "lost" in kinds(pool))
    again = FakeBoard("one")
    pool.add(again, lambda: True)
    until(lambda: pool.measure([trial() for _ in range(4)]) and again.runs["good"])
