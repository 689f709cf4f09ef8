"""The PyTorch front end: capture through TorchDynamo and AOTAutograd, and the import of ATen graphs."""
