"""Hooks that come and go after the first call are seen: of one module, of all modules, forward and backward."""

import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

import dcir
from dcir.errors import NotCompiledWarning


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 5))


def agree(fast, module, x):
    torch.testing.assert_close(fast(x), module(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("calls", [1, 30])
def test_forward_hook_after_calls(calls, grad):
    """As many calls as it takes for the short way, then a hook, then none."""
    module, x = net().eval(), torch.randn(2, 3, 8, 8)
    fast = dcir.optimize(module)
    with torch.set_grad_enabled(grad):
        for _ in range(calls):
            agree(fast, module, x)
        hook = module[1].register_forward_hook(lambda m, i, out: out * 3)
        hooked = module(x)
        for _ in range(calls):
            agree(fast, module, x)
        hook.remove()
        for _ in range(calls):
            agree(fast, module, x)
        assert not torch.allclose(hooked, module(x))


def test_pre_hook_after_calls():
    module, x = net().eval(), torch.randn(2, 3, 8, 8)
    fast = dcir.optimize(module)
    agree(fast, module, x)
    module[3].register_forward_pre_hook(lambda m, args: (args[0] + 1,))
    agree(fast, module, x)


@pytest.mark.parametrize("calls", [1, 30])
def test_hook_for_all_modules(calls):
    """Runs in PyTorch with a warning, once, and compiled again when the hook is gone; after calls by the short way, too."""
    module, x = net().eval(), torch.randn(2, 3, 8, 8)
    fast = dcir.optimize(module)
    with torch.set_grad_enabled(calls == 1):
        for _ in range(calls):
            agree(fast, module, x)
        seen = []
        hook = register_module_forward_hook(
            lambda m, i, out: seen.append(type(m)) or (out * 2 if isinstance(m, nn.ReLU) else None)
        )
        try:
            with pytest.warns(NotCompiledWarning, match="hook for all modules"):
                agree(fast, module, x)
            assert seen.count(nn.ReLU) == 2
        finally:
            hook.remove()
        agree(fast, module, x)
    assert seen.count(nn.ReLU) == 2
