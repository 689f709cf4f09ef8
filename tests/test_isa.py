"""Instruction sets: what the processor has, what DCIR_ISA may ask for, and the compiler's flags for it."""

import pytest
import torch

import dcir
from dcir import isa
from dcir.codegen.cpp.toolchain import default_flags
from dcir.errors import OptionError
from dcir.identity import package_files
from dcir.isa import host_isa

FLAGS = {
    "generic": {"sse2"},
    "avx2": {"avx2", "fma"},
    "avx512": {"avx2", "fma", "avx512f", "avx512vl", "avx512bw", "avx512dq"},
    "avx512bf16": {"avx2", "fma", "avx512f", "avx512vl", "avx512bw", "avx512dq", "avx512_bf16"},
    "amx": {"avx2", "fma", "avx512f", "avx512vl", "avx512bw", "avx512dq", "amx_tile", "amx_bf16"},
}


@pytest.fixture
def processor(monkeypatch):
    """Pretends to be a processor; the system gives it its tiles unless told otherwise."""
    monkeypatch.delenv("DCIR_ISA", raising=False)

    def be(flags, tiles=True):
        monkeypatch.setattr(isa, "_processor_flags", lambda: frozenset(flags))
        monkeypatch.setattr(isa, "_may_use_tiles", lambda: tiles)
        isa.executable.cache_clear()

    yield be
    isa.executable.cache_clear()


@pytest.mark.parametrize("name", FLAGS)
def test_a_processor_has_its_widest_set_and_all_narrower_ones(processor, name):
    processor(FLAGS[name])
    assert isa.host_isa().name == name and isa.executable()[0] == name and isa.executable()[-1] == "generic"
    assert default_flags(host_isa())[0] == "-march=native"


def test_tiles_that_the_system_withholds(processor):
    processor(FLAGS["amx"], tiles=False)
    assert isa.executable()[0] == "avx512"


def test_a_wider_set_than_the_processor_has_is_refused_before_anything_is_compiled(processor, monkeypatch):
    processor(FLAGS["avx2"])
    monkeypatch.setenv("DCIR_ISA", "avx512")
    assert default_flags(host_isa())[0] == "-march=skylake-avx512"
    torch._dynamo.reset()
    with torch.no_grad(), pytest.raises(OptionError, match="this processor has no avx512") as refused:
        dcir.optimize(torch.exp)(torch.ones(3))
    assert refused.value.hint == "one of avx2, generic" and refused.value.where == "DCIR_ISA=avx512"


def test_an_unknown_set(monkeypatch):
    monkeypatch.setenv("DCIR_ISA", "sse")
    with pytest.raises(OptionError, match="unknown"):
        isa.host_isa()


def test_the_driver_alone_asks_the_processor():
    """What passes, emitters and operators know of the machine they are told; else a spec would mean another thing elsewhere."""
    asking = {name for name, path in package_files().items() if name.endswith(".py") and "host_isa" in path.read_text()}
    assert asking == {"isa.py", "driver/targets/host.py"}
