"""The journal of an interrupted evaluation."""

from __future__ import annotations

from toolchain.pipeline.evaluate.journal import Journal
from toolchain.pipeline.evaluate.metrics import Score


def test_complete_lines_are_kept(tmp_path):
    journal = Journal(tmp_path / "journal.jsonl")
    assert journal.read(9) == []
    journal.append([Score(1.0, "cat"), Score(0.5, "", 1e-6, (3, 4))])
    journal.append([Score(0.0, "dög")])
    with journal.path.open("ab") as stream:
        stream.write(b'{"value": 1.0, "ans')
    expected = [Score(1.0, "cat"), Score(0.5, "", 1e-6, (3, 4)), Score(0.0, "dög")]
    assert journal.read(9) == expected
    journal.append([Score(2.0)])
    assert journal.read(9) == [*expected, Score(2.0)], "the torn line is gone"
    journal.remove()
    journal.remove()
    assert journal.read(9) == []


def test_everything_that_decides_the_scores_has_its_own_file(monkeypatch, tmp_path):
    monkeypatch.setenv("TOOLCHAIN_CACHE", str(tmp_path))
    assert Journal.of("a", ["b"]) == Journal.of("a", ["b"])
    assert len({Journal.of("a", "b").path, Journal.of("ab").path, Journal.of("a", ["b"]).path}) == 3
