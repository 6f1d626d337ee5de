"""Orders of rows in the file of a reference."""

from __future__ import annotations

import numpy as np
import pytest

from toolchain import bundle, tensors
from toolchain.bundle import reference
from toolchain.bundle.reference import RandomSamples, Sample
from toolchain.errors import VerificationError
from toolchain.rankings import Ranking
from toolchain.tensors import TensorSpec

OUTPUTS = {"a.b": np.arange(6, dtype=np.float32).reshape(1, 3, 2)}


def _ranking(scores=(0.3, 0.2, 0.1), rows=((7.0, 8.0),)):
    more = np.array([[0.05] * len(rows)], np.float32)
    return Ranking(("a.b",), np.array([scores], np.float32), more, {"a.b": np.array([rows], np.float32)})


def test_a_reference_keeps_them(tmp_path):
    samples = RandomSamples(0, (Sample("0" * 64), Sample("1" * 64)), (OUTPUTS, OUTPUTS), ((), (_ranking((3, 2, 1)),)))
    bundle.Reference("ort", {}, OUTPUTS, None, samples, (_ranking(),)).save(tmp_path)
    loaded = bundle.Reference.read(tmp_path / "reference.safetensors")
    (ranking,) = loaded.rankings
    assert ranking.names == ("a.b",)
    np.testing.assert_array_equal(ranking.next_rows["a.b"], [[[7, 8]]])
    of_samples = loaded.random.rankings
    assert [[ranking.scores.tolist() for ranking in rankings] for rankings in of_samples] == [[], [[[3, 2, 1]]]]


def test_one_without_any_is_as_it_was(tmp_path):
    bundle.Reference("ort", {}, OUTPUTS).save(tmp_path)
    assert "rankings" not in tensors.notes(tmp_path / "reference.safetensors")
    assert bundle.Reference.read(tmp_path / "reference.safetensors").rankings == ()


@pytest.mark.parametrize(
    ("key", "notes"),
    [
        ("9.scores", None),
        ("0.other", None),
        ("x.scores", None),
        ("0.next_rows.c", None),
        ("", "[{}]"),
        ("", '[{"names": ["a.b", "c"]}]'),
        ("", '[{"names": []}]'),
        ("", '[{"names": ["a.b"], "sample": -1}]'),
        ("", "{"),
    ],
)
def test_what_has_another_form_is_refused(key, notes):
    arrays, metadata = reference.rankings_to_tensors([(None, _ranking())])
    fields = {name.partition(".")[2]: value for name, value in arrays.items()}
    if key:
        fields[key] = np.ones(1)
    with pytest.raises(VerificationError, match="ranking"):
        reference.read_rankings(fields, {"rankings": notes} if notes else metadata, "here")


@pytest.mark.parametrize(
    ("ranking", "fault"),
    [
        (_ranking(), ""),
        (_ranking(scores=(0.3, 0.2, 0.1, 0.0)), "does not fit this output"),
        (_ranking(rows=((7.0, 8.0, 9.0),)), "expected"),
        (Ranking(("c",), np.ones((1, 3)), np.ones((1, 1)), {"c": np.ones((1, 1, 2))}), "does not fit this output"),
        (Ranking(("a.b",), np.ones(3), np.ones((1, 1)), {"a.b": np.ones((1, 1, 2))}), "do not have the shape"),
        (Ranking(("a.b",), np.ones((1, 3), int), np.ones((1, 1)), {"a.b": np.ones((1, 1, 2))}), "floating-point type"),
    ],
)
def test_what_does_not_fit_the_outputs(ranking, fault):
    faults = reference.ranking_faults(ranking, [TensorSpec("a.b", (1, 3, 2), "float32")])
    assert fault in faults[0] if fault else not faults
