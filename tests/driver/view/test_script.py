"""A script says all that a compilation depends on, as Python writes it, whatever the names in it are."""

from __future__ import annotations

import ast
from typing import Any

import torch
from torch import nn

from dcir.driver.view.delta import Delta
from dcir.driver.view.files import of_source
from dcir.driver.view.script import script
from dcir.driver.view.subject import of_module
from dcir.options import Options

NASTY = "a'); import os; os.system('true'); ('.py:make"


def called(text: str, name: str) -> ast.Call:
    """The one call of a function."""
    (found,) = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Call) and ast.unparse(n.func) == name]
    return found


def arguments(call: ast.Call) -> dict[str, Any]:
    return {k.arg or "": ast.literal_eval(k.value) for k in call.keywords if not isinstance(k.value, ast.Name)}


def test_only_what_differs_is_said() -> None:
    text = script(of_source("net.py:make"), Options(), Delta())
    assert arguments(called(text, "dcir.optimize")) == {"dynamic": False}
    text = script(of_source("net.py:make"), Options(level=2), Delta(threads=3, skip=("fuse-producers@a+b",)))
    assert arguments(called(text, "dcir.optimize")) == {
        "level": 2, "threads": 3, "skip": ["fuse-producers@a+b"], "dynamic": False
    }  # fmt: skip
    assert ast.literal_eval(called(text, "torch.set_num_threads").args[0]) == 3


def test_names_are_text_in_it() -> None:
    text = script(of_source(NASTY), Options(), Delta())
    assert ast.literal_eval(called(text, "open_with_batch").args[0]) == NASTY
    assert not [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Import) and n.names[0].name == "os"]


def test_the_batch_is_the_changes() -> None:
    for subject in (of_source("net.py:make"), of_source("net.py:make", batch=2)):
        text = script(subject, Options(), Delta(batch=5))
        assert arguments(called(text, "open_with_batch")) == {"batch": 5}
    text = script(of_source("m.onnx", shapes={"x": [1, "n"]}), Options(), Delta(batch=5))
    assert arguments(called(text, "open_with_batch")) == {"shapes": {"x": [1, "n"]}, "batch": 5}


def test_a_model_of_the_process_is_the_users_to_bring() -> None:
    subject = of_module("Net", nn.Identity, lambda m, s: m, (torch.zeros(1),), {})
    text = script(subject, Options(), Delta(disable=("fuse-epilogues",)))
    assert "# model, inputs: yours" in text and ast.parse(text)


def test_a_pipeline_of_the_users_is_the_users_to_bring() -> None:
    from dcir.transforms.pipelines import pipeline

    text = script(of_source("net.py:make"), Options(pipeline=pipeline(2)), Delta(disable=("fuse-epilogues",)))
    assert "# pipeline: yours" in text and "for p in pipeline" in text and ast.parse(text)
