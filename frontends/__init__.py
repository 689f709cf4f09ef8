"""Front ends: how PyTorch modules and ONNX files become the network SDFG."""
