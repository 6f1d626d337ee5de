"""Pages of HTML that need no other file and no script: a document, its tables, and plots as inline SVG.

A page is made of frozen records, and `Page.html` writes it: the same records give the same bytes. Every text is taken
as text, whoever said it. See `document` for pages and sections, `parts` for what stands in them, and `steps`, `dots`,
`series`, `histogram` and `bars` for the kinds of plots.
"""

from toolchain.page.bars import Bar, Bars
from toolchain.page.document import EMULATED, HEAD, INCONCLUSIVE, MODELLED, Mark, Page, Section, Verdict, is_ours
from toolchain.page.dots import Dot, Dots
from toolchain.page.figure import Level
from toolchain.page.histogram import Group, Histogram
from toolchain.page.parts import Cell, Facts, Notes, Part, Table, Text, Tone, number, percent
from toolchain.page.series import Run, Series
from toolchain.page.steps import Step, Steps

__all__ = [
    "EMULATED",
    "HEAD",
    "INCONCLUSIVE",
    "MODELLED",
    "Bar",
    "Bars",
    "Cell",
    "Dot",
    "Dots",
    "Facts",
    "Group",
    "Histogram",
    "Level",
    "Mark",
    "Notes",
    "Page",
    "Part",
    "Run",
    "Section",
    "Series",
    "Step",
    "Steps",
    "Table",
    "Text",
    "Tone",
    "Verdict",
    "is_ours",
    "number",
    "percent",
]
