"""The ONNX reader: a file becomes an `nn.Module` that every PyTorch tracer understands."""

from .module import OnnxModule, ValueSpec, load
from .registry import operators

__all__ = ["OnnxModule", "ValueSpec", "load", "operators"]
