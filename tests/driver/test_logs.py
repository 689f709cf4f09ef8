"""dcir says nothing unless it is asked; then each module of it has its logger, which TORCH_LOGS reaches, too."""

import logging
import os
import re
import subprocess
import sys

import pytest
import torch
from torch import nn

import dcir

pytestmark = pytest.mark.in_turn(3)

PROGRAM = """
import torch
import dcir
fast = dcir.optimize(torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.GELU()).eval())
with torch.no_grad():
    fast(torch.ones(2, 6))
"""


def said(tmp_path, **environment):
    """What a process that compiles a model writes to its error stream."""
    environment = {**os.environ, "DCIR_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.getcwd(), **environment}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True)
    return done.stderr.splitlines()


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """A cache that has the model's code, and where nothing was said when it was made."""
    folder = tmp_path_factory.mktemp("cache")
    assert said(folder) == []
    return folder


def test_silence_is_the_default(cache):
    assert said(cache) == []


def test_torch_logs_reach_every_module(cache):
    lines = said(cache, TORCH_LOGS="+dcir")
    first = [line for line in lines if "compiled inference of Sequential: " in line]
    assert len(first) == 1 and "operators" in first[0] and "kernels (from the cache)" in first[0]
    assert sum("graph: 1 of 1 in the cache" in line for line in lines) == 1
    assert sum("fuse-epilogues: 2 rewrites" in line for line in lines) == 1


def test_torch_logs_without_a_plus_has_the_news_alone(cache):
    lines = said(cache, TORCH_LOGS="dcir")
    assert len(lines) == 1 and "compiled inference of Sequential: " in lines[0]


def test_passes_cache_and_builds_are_detail(caplog, tmp_path, monkeypatch):
    monkeypatch.setenv("DCIR_CACHE_DIR", str(tmp_path))
    caplog.set_level(logging.DEBUG, logger="dcir")
    torch._dynamo.reset()
    fast = dcir.optimize(nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 3)).eval())
    with torch.no_grad():
        fast(torch.ones(4, 6))
    said = {
        name: [r.getMessage() for r in caplog.records if r.name == name] for name in {r.name for r in caplog.records}
    }
    (graph,) = fast.dcir.explain().graphs
    passes = [line.partition(":")[0] for line in said["dcir.transforms.runner"]]
    assert passes == [p.name for p in graph.passes if p.changed] != []
    assert "graph: 0 of 1 in the cache" in said["dcir.cache"]
    assert any(re.fullmatch(r"object: 0 of \d+ in the cache", line) for line in said["dcir.cache"])
    assert [line.split()[0] for line in said["dcir.codegen.cpp.toolchain"]] == ["compiled", "linked"]
    assert all(r.levelno == logging.DEBUG for r in caplog.records if r.name != "dcir")


def test_nobody_listens_and_nothing_is_written(caplog):
    caplog.set_level(logging.WARNING, logger="dcir")
    torch._dynamo.reset()
    with torch.no_grad():
        dcir.optimize(nn.Linear(6, 8).eval())(torch.ones(4, 6))
    assert [r for r in caplog.records if r.name.startswith("dcir")] == []
