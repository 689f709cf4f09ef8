"""The ONNX reader: a file becomes an `nn.Module` that every PyTorch tracer understands."""

from dcir.frontends.onnx.module import OnnxModule, ValueSpec, load
from dcir.frontends.onnx.registry import operators

__all__ = ["OnnxModule", "ValueSpec", "load", "operators"]
