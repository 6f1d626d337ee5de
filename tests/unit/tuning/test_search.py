import pytest

from tests.support.tuning_client import backend, lowered
from toolchain.records import tasks
from toolchain.records.traces import DEFAULT
from toolchain.tuning.search import TUNERS, Search, _tilings


@pytest.fixture(scope="module")
def dense():
    return next(task for task in tasks.extract(lowered("mlp"), backend()) if task.operator == "matmul")


def keys(candidates):
    return [candidate.key for candidate in candidates]


def latency(candidate):
    return [1e-4 + int(candidate.key[:6], 16) * 1e-12]


def three_rounds(tuner, dense, seed=0):
    search, rounds = Search(backend(), tuner, seed), []
    for number in range(3):
        round_of = search.propose(dense, number, 8)
        search.learn(dense, round_of, [latency(candidate) for candidate in round_of])
        rounds.append(keys(round_of))
    return rounds


@pytest.mark.long
@pytest.mark.parametrize("tuner", TUNERS)
def test_a_search_never_tries_a_candidate_twice_and_repeats_itself(tuner, dense):
    rounds = three_rounds(tuner, dense)
    everything = [key for round_keys in rounds for key in round_keys]
    assert len(everything) == 24
    assert len(set(everything)) == 24
    assert three_rounds(tuner, dense) == rounds


def test_another_seed_is_another_search(dense):
    assert three_rounds("random", dense, seed=0) != three_rounds("random", dense, seed=1)


@pytest.mark.parametrize("tuner", ["evolutionary-xgb", "evolutionary-random"])
def test_a_round_follows_from_what_was_learned_not_from_how_it_was_found(tuner, dense):
    first = Search(backend(), tuner, 0)
    candidates = first.propose(dense, 0, 8)
    first.learn(dense, candidates, [latency(candidate) for candidate in candidates])

    second = Search(backend(), tuner, 0)
    again = [second.rebuild(dense, candidate.trace) for candidate in candidates]
    second.learn(dense, again, [latency(candidate) for candidate in again])
    assert keys(second.propose(dense, 1, 8)) == keys(first.propose(dense, 1, 8))


def test_a_kernel_with_one_schedule_is_soon_exhausted():
    element_wise = tasks.extract(lowered("mlp"), backend())[0]
    search = Search(backend(), "evolutionary-xgb", 0)
    candidates = search.propose(element_wise, 0, 8)
    assert len(candidates) == 2  # and the backend's own
    search.learn(element_wise, candidates, [[1e-6]] * 2)
    assert search.propose(element_wise, 1, 8) == []


@pytest.mark.parametrize("tuner", TUNERS)
def test_what_a_kernel_is_untuned_is_the_first_candidate(tuner, dense):
    search = Search(backend(), tuner, 0)
    first, *others = search.propose(dense, 0, 4)
    assert (first.trace, first.schedule) == (DEFAULT, None)
    assert tasks.workload_hash(backend().schedule(dense.module)) == first.key
    assert all(candidate.trace != DEFAULT for candidate in others)
    again = search.rebuild(dense, DEFAULT)
    assert (again.key, again.trace) == (first.key, DEFAULT)


def test_failures_are_learned_from_and_not_tried_again(dense):
    search = Search(backend(), "evolutionary-xgb", 0)
    candidates = search.propose(dense, 0, 8)
    search.learn(dense, candidates, [[]] * 8)
    assert not set(keys(candidates)) & set(keys(search.propose(dense, 1, 8)))


def test_tilings_are_all_ordered_products():
    assert _tilings(4, 2) == [[1, 4], [2, 2], [4, 1]]
    assert len(_tilings(64, 4)) == 84


def many_rounds(dense, limit):
    search, rounds = Search(backend(), "evolutionary-xgb", 0), []
    for number in range(6):
        round_of = search.propose(dense, number, 32)
        search.learn(dense, round_of, [latency(candidate) for candidate in round_of])
        rounds.append(keys(round_of))
        assert len(search.of_task(dense).database) <= limit
    return rounds


@pytest.mark.long
def test_slow_candidates_are_forgotten_and_nothing_else_is_found_for_that(dense, monkeypatch):
    expected = many_rounds(dense, 128)
    monkeypatch.setattr("toolchain.tuning.search._BEST", 1000)
    assert many_rounds(dense, 192) == expected


def test_the_cost_model_keeps_the_newer_results(dense, monkeypatch):
    monkeypatch.setattr("toolchain.tuning.search._MOST_LEARNED", 50)
    search = Search(backend(), "evolutionary-xgb", 0)
    for number in range(3):
        candidates = search.propose(dense, number, 32)
        search.learn(dense, candidates, [latency(candidate) for candidate in candidates])
        (group,) = search._cost_model.data.values()
        assert len(group.features) == len(group.costs) <= 50
        last = [min(latency(candidate)) for candidate in candidates][-1]
        assert group.costs[-1] == pytest.approx(last)
