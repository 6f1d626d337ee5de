"""A metric on the user's own data, of the same samples in ONNX Runtime and on a device, compared in pairs."""

from toolchain.pipeline.evaluate.catalog import NAMES
from toolchain.pipeline.evaluate.file import Requirement
from toolchain.pipeline.evaluate.file import read as read_requirement
from toolchain.pipeline.evaluate.result import Evaluation
from toolchain.pipeline.evaluate.scoring import LabelledSamples, SampleRequest
from toolchain.pipeline.evaluate.session import EvaluationRequest, ModelFiles, Prepared, evaluate, prepare

__all__ = [
    "NAMES",
    "Evaluation",
    "EvaluationRequest",
    "LabelledSamples",
    "ModelFiles",
    "Prepared",
    "Requirement",
    "SampleRequest",
    "evaluate",
    "prepare",
    "read_requirement",
]
