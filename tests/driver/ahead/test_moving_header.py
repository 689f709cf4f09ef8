"""From C a program is called at any sizes within its bounds: memory is as large as they need, and results are PyTorch's."""

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

PROGRAM = r"""
#include "dcir.h"

static void *load(const char *path, size_t bytes) {
    FILE *file = fopen(path, "rb");
    void *memory = dcir_memory(bytes);
    if (!file || fread(memory, 1, bytes, file) != bytes || fgetc(file) != EOF) exit(3);
    fclose(file);
    return memory;
}

/* ./run WEIGHTS sizes ... inputs ...: one call at the greatest sizes is not made; results are written to standard output. */
int main(int count, char **words) {
    dcir_model *model = dcir_open(words[1]);
    if (!model || count != 2 + DCIR_DIMENSIONS + DCIR_INPUTS) return 2;
    long long sizes[DCIR_DIMENSIONS];
    for (int i = 0; i < DCIR_DIMENSIONS; i++) sizes[i] = atoll(words[2 + i]);
    int outside = dcir_resize(model, sizes);
    if (outside) {
        printf("%s\n", dcir_dimensions[outside - 1].name);
        return 4;
    }
    void *inputs[DCIR_INPUTS], *buffers[DCIR_BUFFERS];
    for (int i = 0; i < DCIR_INPUTS; i++) inputs[i] = load(words[2 + DCIR_DIMENSIONS + i], dcir_input_bytes(model, i));
    for (int i = 0; i < DCIR_BUFFERS; i++) buffers[i] = dcir_memory(dcir_buffer_bytes(model, i));
    int status = dcir_call(model, (const void *const *)inputs, buffers);
    for (int i = 0; status == 0 && i < DCIR_OUTPUTS; i++) {
        dcir_layout out = dcir_output_layout(model, i);
        long long elements = 1;
        for (int d = 0; d < out.rank; d++) elements *= out.shape[d];
        for (long long k = 0; k < elements; k++) {
            long long place = out.offset, rest = k;
            for (int d = out.rank - 1; d >= 0; d--) {
                place += rest % out.shape[d] * out.strides[d];
                rest /= out.shape[d];
            }
            fwrite((float *)buffers[dcir_outputs[i].index] + place, sizeof(float), 1, stdout);
        }
    }
    dcir_close(model);
    return status;
}
"""


class Images(nn.Module):
    """Sizes that are divided by four on the way, and a part of a result."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 16, 3, 2, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.second(self.first(x).relu()).relu()
        return y[:, :, 1:], y.mean((2, 3))


def built(folder: Path, compiler: str = "gcc -std=c11", name: str = "run.c") -> Path:
    """The program, linked with the first library of the file in a folder."""
    with zipfile.ZipFile(folder / "model.dcir") as archive:
        archive.extractall(folder)
    (folder / name).write_text(PROGRAM)
    library = folder / "0" / "network.so"
    command = [
        *compiler.split(),
        "-O1",
        "-Wall",
        "-Wextra",
        "-Werror",
        f"-I{folder / '0'}",
        str(folder / name),
        str(library),
    ]
    command += [f"-Wl,-rpath,{folder / '0'}", "-fopenmp", "-lm", "-o", str(folder / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "run"


def called(program: Path, sizes: tuple[int, ...], inputs: list[torch.Tensor]) -> subprocess.CompletedProcess[bytes]:
    files = [program.parent / f"{i}.bin" for i in range(len(inputs))]
    for file, x in zip(files, inputs, strict=True):
        x.numpy().tofile(file)
    words = [str(program.parent / "weights.safetensors"), *map(str, (*sizes, *files))]
    return subprocess.run([str(program), *words], capture_output=True, check=False)


def check(program: Path, net: nn.Module, sizes: tuple[int, ...], inputs: list[torch.Tensor]) -> None:
    done = called(program, sizes, inputs)
    assert done.returncode == 0
    with torch.no_grad():
        want = torch.cat([t.flatten() for t in net(*inputs)])
    torch.testing.assert_close(
        torch.from_numpy(np.frombuffer(done.stdout, np.float32).copy()), want, rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize(("compiler", "name"), [("gcc -std=c11", "run.c"), ("g++ -std=c++20", "run.cpp")])
def test_text_of_any_size_from_c(tmp_path, compiler, name) -> None:
    torch.manual_seed(0)
    net, b, s = Encoder().eval(), Dim("b", min=2, max=16), Dim("s", min=2, max=64)

    def text(batch: int, length: int) -> list[torch.Tensor]:
        return [torch.randint(0, 50, (batch, length)), torch.ones(batch, length)]

    api.save(net, text(3, 7), tmp_path / "model.dcir", dynamic={0: {0: b, 1: s}, 1: {0: "b", 1: "s"}}, strict=True)
    program = built(tmp_path, compiler, name)
    for size in ((2, 2), (16, 64), (2, 64), (5, 37)):
        check(program, net, size, text(*size))
    for size, outside in (((17, 3), b"b"), ((1, 3), b"b"), ((2, 65), b"s")):
        done = called(program, size, text(*size))
        assert done.returncode == 4 and done.stdout.strip() == outside


def test_images_from_c(tmp_path) -> None:
    torch.manual_seed(0)
    net, sizes = Images().eval(), {0: {2: Dim("h", min=32, max=96), 3: Dim("w", min=32, max=96)}}
    api.save(net, [torch.zeros(2, 3, 40, 48)], tmp_path / "model.dcir", dynamic=sizes, strict=True)
    program = built(tmp_path)
    for size in ((32, 32), (96, 96), (33, 34), (35, 62)):
        check(program, net, size, [torch.randn(2, 3, *size)])
