"""A metric on the user's own data, of the same samples in ONNX Runtime and on a device, compared in pairs."""

from toolchain.pipeline.evaluate.metrics import NAMES
from toolchain.pipeline.evaluate.result import Evaluation
from toolchain.pipeline.evaluate.scoring import SampleRequest
from toolchain.pipeline.evaluate.session import EvaluationRequest, ModelFiles, evaluate

__all__ = ["NAMES", "Evaluation", "EvaluationRequest", "ModelFiles", "SampleRequest", "evaluate"]
