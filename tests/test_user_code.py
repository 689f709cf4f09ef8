"""A user's folder may be named torch or dcir: code is the user's by where it lies, and warnings point at it."""

import contextlib
import os
import warnings
from pathlib import Path

import pytest
import torch

import dcir
from dcir.errors import RecompileWarning
from dcir.user_code import PACKAGE, is_users, warn_user

USERS = (
    "~/torch/train.py",
    "~/dcir/train.py",
    "~/work/dcir/tests/test_x.py",
    "~/site-packages/torch2/x.py",
    "contextlib.py",
)
OTHERS = (
    *(PACKAGE / name for name in ("cache.py", "driver/optimize.py", "frontends/torch/capture.py", "codegen/cpp/toolchain.py")),
    *((PACKAGE / name).resolve() for name in ("transforms/runner.py", "codegen/cpp/print_driver.py")),
    Path(torch.__file__).parent / "nn" / "modules" / "linear.py", contextlib.__file__, "<frozen importlib._bootstrap>",
)  # fmt: skip


@pytest.mark.parametrize("name", USERS)
def test_the_users(name):
    assert is_users(os.path.expanduser(name))


@pytest.mark.parametrize("name", map(str, OTHERS), ids=lambda n: n.rsplit("/", 1)[-1])
def test_others(name):
    assert not is_users(name)


def run_in(filename, source, **names):
    """Run source as if it stood in a file; gives the warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        exec(compile(source, filename, "exec"), names)
    return caught


@pytest.mark.parametrize("name", USERS[:2])
def test_a_warning_points_at_the_users_line(name):
    file = os.path.expanduser(name)
    caught = run_in(file, "def call():\n    warn('so', UserWarning)\ncall()", warn=warn_user)
    assert [(w.filename, w.lineno) for w in caught] == [(file, 2)]
    torch._dynamo.reset()
    fast = dcir.optimize(torch.nn.Linear(6, 3).eval())
    caught = run_in(file, "fast(torch.ones(2, 6))\nfast(torch.ones(4, 6))", fast=fast, torch=torch)
    ours = [w for w in caught if w.category is RecompileWarning]
    assert [(w.filename, w.lineno) for w in ours] == [(file, 2)]
