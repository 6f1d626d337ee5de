"""A profile in a terminal."""

from toolchain.pipeline.profile import pages
from toolchain.report import plain


def test_every_kernel_has_a_line(profile):
    text = plain(pages.profile_page(profile).printed())
    assert "conv2d 1x3x8x8 -> 1x4x8x8" in text
    assert "0.6000 ms  60.0%     16.7   33%   1.6  compute" in text
    assert "virtual machine" in text
    assert "50.0 GFLOP/s and 5.0 GB/s, measured" in text
    assert "MODELLED" not in text


def test_what_is_emulated_or_modelled_is_marked(doubtful):
    text = plain(pages.profile_page(doubtful).printed())
    assert "without profiling   1.000 ms (emulated)" in text
    assert "MODELLED" in text
    assert "2.125 ms" in text
    assert "none: it is an emulator" in text
