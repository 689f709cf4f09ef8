"""Whole training steps, torch's optimisers as formulas, and modules that torch.distributed wraps."""
