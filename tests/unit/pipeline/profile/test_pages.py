"""Profiles as pages."""

from tests.unit.pipeline.profile.test_against import graph, held, layers
from toolchain.pipeline.profile import pages
from toolchain.report import HEAD, is_ours
from toolchain.units import duration


def test_a_page_has_all_rows_and_no_markup_of_a_kernel(profile):
    text = pages.profile_page(profile).html()
    assert is_ours(text[:HEAD].encode())
    assert "odd&lt;b&gt;" in text
    assert "<b>" not in text
    assert all(duration(row.ms) in text for row in profile.rows)
    assert "emulated" not in text


def test_marks_stand_on_the_page(doubtful):
    text = pages.profile_page(doubtful).html()
    assert '<span class="mark doubt">emulated</span>' in text
    assert '<span class="mark doubt">modelled</span>' in text


def test_a_page_of_two_releases_names_the_layer_that_is_slower():
    names = {"a": "conv2d", "b": "dense"}
    compared = layers(graph(names), graph(names), [("a", 90_000), ("b", 50_000)], [("a", 60_000), ("b", 50_000)])
    text = pages.comparison_page(held(compared)).decode()
    assert "slower: 1 conv2d" in text
    assert all(duration(layer.more_ms, signed=True) in text for layer in compared)
