"""How fast is it? The machine's constants, models beside their baselines, every kernel of a call, and kernels' alternatives."""
