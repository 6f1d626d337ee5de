"""What a command reports, for people and for CI: pages of facts, tables, notes and plots, and JUnit XML.

A page consists of frozen records. `Page.html` renders it without other files and scripts, with plots as inline SVG, and
`Page.printed` for a terminal. All texts are untrusted.
"""

from toolchain.report.bars import Bar, Bars
from toolchain.report.document import EMULATED, HEAD, INCONCLUSIVE, MODELLED, Headline, Mark, Page, Section, is_ours
from toolchain.report.figure import Level
from toolchain.report.heat_map import Cell as HeatCell
from toolchain.report.heat_map import HeatMap
from toolchain.report.histogram import Group, Histogram
from toolchain.report.parts import Notes, Part, Picture, Pictures, Text, Tone, number, percent
from toolchain.report.plot import Dots, Plot, Steps, Strokes, Value, samples
from toolchain.report.tables import Cell, Facts, Shown, Table, parts, plain

__all__ = [
    "EMULATED",
    "HEAD",
    "INCONCLUSIVE",
    "MODELLED",
    "Bar",
    "Bars",
    "Cell",
    "Dots",
    "Facts",
    "Group",
    "Headline",
    "HeatCell",
    "HeatMap",
    "Histogram",
    "Level",
    "Mark",
    "Notes",
    "Page",
    "Part",
    "Picture",
    "Pictures",
    "Plot",
    "Section",
    "Shown",
    "Steps",
    "Strokes",
    "Table",
    "Text",
    "Tone",
    "Value",
    "is_ours",
    "number",
    "parts",
    "percent",
    "plain",
    "samples",
]
