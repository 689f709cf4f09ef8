"""ONNX operators as torch functions, by family."""
