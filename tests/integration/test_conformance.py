"""The conformance tests of signed releases, on the clients of this project; docs/security.md has their table."""

from __future__ import annotations

import json
import re
import sys

import pytest

from tests.conformance import __main__ as main
from tests.conformance import cases, run
from tests.conformance.cases import CASES
from tests.support import bundles
from tests.support.paths import ROOT

MANUAL = ROOT / "docs" / "security.md"


@pytest.fixture(scope="module")
def results(tiny, alice, bob, program, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGE_RUNNER", str(program.path))
        rows = []
        for case in CASES:
            setting = cases.Setting(alice, bob, tiny, tmp_path_factory.mktemp("case"))
            case.make(setting)
            rows.append((case, {title: run.result(client, case, setting, title) for title, client in run.OURS.items()}))
    return rows


def test_each_client_does_what_it_must(results):
    wrong = [
        (case.name, title, result.text)
        for case, row in results
        for title, result in row.items()
        if not result.ok and not run.is_excused(title, case)
    ]
    assert wrong == []


def test_the_manual_has_the_table(results):
    lines = list(run.table(results))
    text = MANUAL.read_text()
    begin = text.index(lines[0])
    assert text[begin:].splitlines()[: len(lines)] == lines


def test_the_cases_are_data_too(tmp_path, alice, bob, tiny, monkeypatch):
    """As a client of another project gets them: here ssh-keygen's."""
    monkeypatch.setattr(bundles, "build", lambda *_words, **_more: tiny)
    main.write(tmp_path / "cases")
    rows = json.loads((tmp_path / "cases" / "cases.json").read_text())["cases"]
    assert [row["name"] for row in rows] == [case.name for case in CASES]
    for row in rows:
        trust = tmp_path / "cases" / row["folder"] / "trust"
        code, _listing = run.OURS["ssh-keygen"](
            ["verify", "--trust", str(trust), str(tmp_path / "cases" / row["release"])]
        )
        assert row["whole"] or (code == 0) == row["accepted"], row["name"]


def test_a_client_is_any_program(tiny, alice, bob, tmp_path):
    setting = cases.Setting(alice, bob, tiny, tmp_path)
    client = run.program([sys.executable, str(ROOT / "tests" / "data" / "conformance" / "accepts_all.py")])
    case = next(case for case in CASES if case.name == "no signature file")
    case.make(setting)
    result = run.result(client, case, setting, "a program")
    assert (result.ok, bool(re.match("installs other files", result.text))) == (False, True)
