"""From C several calls run at once on streams that share weights, in the order they were submitted, each with its own results."""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.export import Dim

from dcir.driver import api
from tests.moving import Encoder

JOBS = 12
PROGRAM = r"""
#define DCIR_STREAMS
#include "dcir.h"

static void read_all(void *memory, size_t bytes) {
    if (fread(memory, 1, bytes, stdin) != bytes) exit(3);
}

/* ./run WEIGHTS STREAMS THREADS: jobs are read from standard input; results are written, the last job's first. */
int main(int count, char **words) {
    if (count != 4) return 2;
    dcir_streams *none = dcir_streams_open("/no/such/file", 2, 1);
    dcir_streams *streams = dcir_streams_open(words[1], atoi(words[2]), atoi(words[3]));
    if (none || !streams) return 4;
    static dcir_job jobs[JOBS];
    static void *inputs[JOBS][DCIR_INPUTS], *buffers[JOBS][DCIR_BUFFERS];
    for (int j = 0; j < JOBS; j++) {
        jobs[j].inputs = (const void *const *)inputs[j];
        jobs[j].buffers = buffers[j];
        size_t of_input[DCIR_INPUTS], of_buffer[DCIR_BUFFERS];
#ifdef DCIR_DIMENSIONS
        static long long sizes[JOBS][DCIR_DIMENSIONS];
        read_all(sizes[j], sizeof sizes[j]);
        jobs[j].sizes = sizes[j];
        dcir_model *at = dcir_share(streams->first);
        if (!at || dcir_resize(at, sizes[j])) return 5;
        for (int i = 0; i < DCIR_INPUTS; i++) of_input[i] = dcir_input_bytes(at, i);
        for (int i = 0; i < DCIR_BUFFERS; i++) of_buffer[i] = dcir_buffer_bytes(at, i);
        dcir_close(at);
#else
        for (int i = 0; i < DCIR_INPUTS; i++) of_input[i] = dcir_inputs[i].bytes;
        for (int i = 0; i < DCIR_BUFFERS; i++) of_buffer[i] = dcir_buffers[i].bytes;
#endif
        for (int i = 0; i < DCIR_INPUTS; i++) read_all(inputs[j][i] = dcir_memory(of_input[i]), of_input[i]);
        for (int i = 0; i < DCIR_BUFFERS; i++) buffers[j][i] = dcir_memory(of_buffer[i]);
        dcir_submit(streams, &jobs[j]);
    }
    for (int j = JOBS - 1; j >= 0; j--)
        if (dcir_wait(streams, &jobs[j])) return 6;
    for (int j = JOBS - 1; j >= 0; j--) {
        size_t bytes = dcir_buffers[dcir_outputs[0].index].bytes;
#ifdef DCIR_DIMENSIONS
        dcir_model *at = dcir_share(streams->first);
        dcir_resize(at, jobs[j].sizes);
        bytes = dcir_buffer_bytes(at, dcir_outputs[0].index);
        dcir_close(at);
#endif
        fwrite(buffers[j][dcir_outputs[0].index], 1, bytes, stdout);
    }
    for (int j = 0; j < JOBS; j++) dcir_submit(streams, &jobs[j]); /* nobody waits for these: closing runs them */
    dcir_streams_close(streams);
    for (int j = 0; j < JOBS; j++)
        if (!jobs[j].done || jobs[j].status) return 7;
    return 0;
}
"""


def built(folder: Path, where: str, compiler: str, name: str) -> Path:
    with zipfile.ZipFile(folder / "model.dcir") as archive:
        archive.extractall(folder)
    (folder / name).write_text(PROGRAM)
    place = folder / where
    command = [
        *compiler.split(),
        f"-DJOBS={JOBS}",
        "-O1",
        "-Wall",
        "-Wextra",
        "-Werror",
        f"-I{place}",
        str(folder / name),
    ]
    command += [
        str(place / "network.so"),
        f"-Wl,-rpath,{place}",
        "-pthread",
        "-fopenmp",
        "-lm",
        "-o",
        str(folder / "run"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "run"


def results(program: Path, given: bytes, streams: int, threads: int) -> np.ndarray:
    words = [str(program), str(program.parent / "weights.safetensors"), str(streams), str(threads)]
    done = subprocess.run(words, input=given, capture_output=True, check=False, timeout=120)
    assert done.returncode == 0, done.returncode
    return np.frombuffer(done.stdout, np.float32)


@pytest.mark.parametrize(("compiler", "name"), [("gcc -std=c11", "run.c"), ("g++ -std=c++20", "run.cpp")])
def test_calls_at_once_have_their_own_results(tmp_path, compiler, name) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 15 * 15, 5)
    ).eval()
    xs = [torch.randn(2, 3, 31, 31) for _ in range(JOBS)]
    api.save(net, xs[:1], tmp_path / "model.dcir", strict=True)
    program = built(tmp_path, "", compiler, name)
    with torch.no_grad():
        want = torch.cat([net(x).flatten() for x in reversed(xs)])
    given = b"".join(x.numpy().tobytes() for x in xs)
    for streams, threads in ((1, 2), (3, 1)):
        got = torch.from_numpy(results(program, given, streams, threads).copy())
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_each_call_has_its_own_sizes(tmp_path) -> None:
    torch.manual_seed(0)
    net, b, s = Encoder().eval(), Dim("b", min=2, max=16), Dim("s", min=2, max=64)
    sizes = [(2 + 3 * j % 15, 2 + 17 * j % 63) for j in range(JOBS)]
    calls = [[torch.randint(0, 50, (n, m)), torch.ones(n, m)] for n, m in sizes]
    api.save(net, calls[1], tmp_path / "model.dcir", dynamic={0: {0: b, 1: s}, 1: {0: "b", 1: "s"}}, strict=True)
    program = built(tmp_path, "0", "gcc -std=c11", "run.c")
    given = b"".join(
        np.asarray(at, np.int64).tobytes() + b"".join(x.numpy().tobytes() for x in call)
        for at, call in zip(sizes, calls, strict=True)
    )
    with torch.no_grad():
        want = torch.cat([net(*call)[0].flatten() for call in reversed(calls)])
    torch.testing.assert_close(torch.from_numpy(results(program, given, 3, 1).copy()), want, rtol=1e-4, atol=1e-5)
