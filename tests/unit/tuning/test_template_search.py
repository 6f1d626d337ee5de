"""The search over templates, on a real layer of this machine's CPU."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest

from toolchain.backends.cpu.backend import Cpu
from toolchain.backends.cpu.layers import Activation, Conv, to_json
from toolchain.records.tasks import layer_hash, layer_of
from toolchain.tuning.search import TemplateSearch, choice_hash

LAYER = to_json(Conv(Activation(1, 32, 8, 8, 4), Activation(1, 32, 8, 8, 4), (3, 3), padding=(1, 1, 1, 1)))


@pytest.fixture
def templates(native):
    """Templates of a CPU with vectors of four floats, whatever this one has."""
    all_templates = Cpu(native).templates
    return dataclasses.replace(all_templates, machine=dataclasses.replace(all_templates.machine, lanes=4, registers=16))


@pytest.fixture
def task():
    return SimpleNamespace(layer=LAYER, workload=layer_hash(LAYER))


def test_all_candidates_are_proposed_once_the_likely_fastest_first(templates, task):
    search, candidates = TemplateSearch(templates), []
    while batch := search.propose(task, 3):
        search.tried(task).update(candidate.key for candidate in batch)
        candidates += batch
    assert [candidate.trace for candidate in candidates] == [*templates.candidates(LAYER), *templates.variants(LAYER)]
    assert len({candidate.key for candidate in candidates}) == len(candidates) > 3
    assert all(layer_of(candidate.module["main"]) == LAYER for candidate in candidates)


def test_the_first_round_has_no_variants(templates, task):
    """Otherwise a run with few trials would spend them all on its first kernels."""
    search, candidates = TemplateSearch(templates), templates.candidates(LAYER)
    first = search.propose(task, 64)
    assert [candidate.trace for candidate in first] == candidates
    search.tried(task).update(candidate.key for candidate in first)
    assert search.propose(task, 2)[0].trace == templates.variants(LAYER)[0] not in candidates


def test_a_candidate_is_made_again_from_its_record(templates, task):
    search = TemplateSearch(templates)
    (first,) = search.propose(task, 1)
    again = search.rebuild(task, first.trace)
    assert (again.key, again.trace) == (first.key, first.trace)


@pytest.mark.parametrize("trace", [[], {"template": "nosuch"}, {"template": "direct", "colums": 3}, {}])
def test_a_record_of_another_kind_makes_nothing(templates, task, trace):
    assert TemplateSearch(templates).rebuild(task, trace) is None


def test_the_hash_of_settings_does_not_depend_on_their_order():
    assert choice_hash({"a": 1, "b": 2}) == choice_hash({"b": 2, "a": 1}) != choice_hash({"a": 1, "b": 3})


def test_what_comes_with_the_toolchain_is_what_a_layer_is_untuned(templates, task):
    search, candidates = TemplateSearch(templates), templates.candidates(LAYER)
    assert search.base(task, None).trace == candidates[0]
    assert search.base(task, candidates[2]).trace == candidates[2]
    assert search.base(task, {"template": "nosuch"}).trace == candidates[0]
