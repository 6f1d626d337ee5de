"""The page of operators, made of the verdicts on the onnx wheel's cases.

    python -m tests.support.operator_table

runs all cases and writes the table into docs/models.md.

    python -m tests.support.operator_table --board opencl-local

runs those whose values a board can have on this machine's OpenCL device, and prints what became of them, by kind.
"""

from __future__ import annotations

import argparse
import collections
import re
import sys
from collections.abc import Iterable, Sequence

from tests.support import operator_cases
from tests.support.operator_cases import OPENCL, PROCESSOR, REFUSED, RIGHT, Verdict
from tests.support.paths import ROOT

PAGE = ROOT / "docs/models.md"
_BEGIN, _END = "<!-- operators: begin -->\n", "<!-- operators: end -->\n"
# ONNX Runtime contradicts what the wheel expects of these, and leaves them out of its own tests, too.
_DISPUTED = {
    "test_maxunpool_export_with_output_shape",
    *(f"test_resize_downsample_scales_{mode}_align_corners" for mode in ("linear", "cubic")),
}
_RELEASED = 26  # the newest version of the standard's operators that ONNX Runtime takes; later ones may still change
_HEADS = "| operator | right | element types that are right | refused for another reason |\n|---|---|---|---|\n"


def names() -> list[str]:
    """Return the cases that count: of those that come a second time as the operator's function, the first."""
    return [name for name in operator_cases.cases() if "_expanded" not in name and name not in _DISPUTED]


def is_exempt(name: str) -> bool:
    """Whether nothing is promised of a case: no board computes text, sequences, optional values or training steps.

    Neither is anything of operators that are not released yet.
    """
    proto = operator_cases.cases()[name].proto
    values = [*proto.graph.input, *proto.graph.output]
    domains = {opset.domain: opset.version for opset in proto.opset_import}
    is_draft = domains.get("", 0) > _RELEASED or any("preview" in domain for domain in domains)
    is_training = "training" in name or any("training" in node.domain for node in proto.graph.node)
    is_optional = any(node.op_type.startswith("Optional") for node in proto.graph.node)
    return (is_draft or is_training or is_optional) or any(
        value.type.WhichOneof("value") != "tensor_type" or value.type.tensor_type.elem_type == _TEXT for value in values
    )


_TEXT = 8  # ONNX's number of strings


def text(verdicts: Iterable[Verdict]) -> str:
    """Return the table, a line for each operator that has a case of its own."""
    by_operator: dict[str, list[Verdict]] = collections.defaultdict(list)
    for verdict in verdicts:
        if len(verdict.operators) == 1:
            by_operator[verdict.operators[0]].append(verdict)
    return _HEADS + "".join(_line(operator, by_operator[operator]) for operator in sorted(by_operator))


def _line(operator: str, verdicts: Sequence[Verdict]) -> str:
    right = [verdict for verdict in verdicts if verdict.kind == RIGHT]
    kinds = ", ".join(sorted({verdict.dtype for verdict in right if verdict.dtype}))
    reasons = sorted({reason(verdict) for verdict in verdicts if verdict.kind == REFUSED} - {_TYPE})
    return f"| {operator} | {len(right)} of {len(verdicts)} | {kinds} | {'; '.join(reasons)} |\n"


_TYPE = "element type"


def reason(verdict: Verdict) -> str:
    """Return why a case was refused, without the names of its nodes and tensors."""
    message, _, details = verdict.text.partition(": ")
    if "element type" in verdict.text:
        return _TYPE
    if "cannot be compiled" in message:
        return details.strip()
    if "cannot import" in message and "node(s)" in message:
        return "no converter"
    plain = re.sub(r"\S*test_\w+(\.onnx)?", "the model", message)
    return re.sub(r"^input \S+ has open dimensions$", "a dimension of 0", plain)


def page(table: str) -> str:
    """Return the page with another table."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(_BEGIN)
    return before + _BEGIN + table + _END + rest.partition(_END)[2]


def promised() -> list[str]:
    """Return the cases whose values a board can have."""
    return [name for name in names() if not is_exempt(name)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--board", choices=(PROCESSOR, OPENCL), default=PROCESSOR)
    if parser.parse_args().board == PROCESSOR:
        PAGE.write_text(page(text(operator_cases.run(names()))), encoding="utf-8")
        return
    verdicts = operator_cases.run(promised(), kind=OPENCL)
    for verdict in verdicts:
        if verdict.kind not in {RIGHT, REFUSED}:
            sys.stdout.write(f"{verdict.kind:8} {verdict.name} {verdict.text}\n")
    sys.stdout.write(f"{dict(collections.Counter(verdict.kind for verdict in verdicts))}\n")


if __name__ == "__main__":
    main()
