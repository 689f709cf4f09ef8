"""How fast is it? The machine's constants, models beside their baselines, kernels of a call, under roofs too, and their alternatives."""
