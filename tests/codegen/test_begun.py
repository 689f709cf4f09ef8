"""Libraries whose compilers run behind the caller: what comes out, who waits, and what is left of one that nobody asks for."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dcir.cache import Cache
from dcir.codegen import compile as compile_module
from dcir.codegen.compile import begun_network, compile_network
from dcir.codegen.cpp import toolchain
from dcir.errors import CompilerFailed
from dcir.ir.network import Network
from dcir.ops.lowering import Lowering, Ref
from tests.bodies import graph, tensor
from tests.transforms.build import binary, unary


def network() -> Network:
    def made(c: Lowering, x: Ref, y: Ref) -> list[Ref]:
        return [unary(c, "tanh", binary(c, "add", x, y))]

    return graph([tensor(3, 5), tensor(3, 5)], made)


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Compilers that do not begin before the event."""
    go, run = threading.Event(), toolchain.run

    def later(command, *rest, **more):  # type: ignore[no-untyped-def]
        if "-c" in command:
            assert go.wait(60), "nobody let the compilers go"
        return run(command, *rest, **more)

    monkeypatch.setattr(toolchain, "run", later)
    yield go
    go.set()


def threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("dcir-library")]


def files(cache: Cache) -> list[str]:
    """What is no finished file of the cache."""
    return sorted(name for _, _, names in os.walk(cache.folder) for name in names if name.startswith(".draft"))


def test_the_caller_goes_on_while_compilers_run(cache, held):
    with begun_network(network(), cache=cache) as library:
        assert threads(), "it did not begin"
        held.set()
        begun = library()
    assert begun.path.is_file() and begun.compiled == begun.kernels > 0
    assert not threads()
    again = compile_network(network(), cache=cache)
    assert (again.path, again.key, again.compiled) == (begun.path, begun.key, 0)


def test_what_is_found_needs_no_thread(cache):
    whole = compile_network(network(), cache=cache)
    with begun_network(network(), cache=cache) as library:
        assert not threads()
        found = library()
    assert (found.path, found.compiled) == (whole.path, 0)


def test_leaving_in_haste_waits_for_the_compilers(cache, held):
    def leave() -> None:
        with begun_network(network(), cache=cache):
            held.set()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        leave()
    assert not threads() and not files(cache)
    assert compile_network(network(), cache=cache).compiled == 0, "what was compiled is there"


def test_a_compiler_that_fails_is_heard_where_the_library_is_asked_for(cache, monkeypatch):
    run = toolchain.run

    def fails(command, *rest, **more):  # type: ignore[no-untyped-def]
        if "-c" in command:
            raise CompilerFailed("the compiler refused the code", where="a test", hint="")
        return run(command, *rest, **more)

    monkeypatch.setattr(toolchain, "run", fails)
    with begun_network(network(), cache=cache) as library, pytest.raises(CompilerFailed):
        library()
    assert not threads() and not files(cache)


def test_a_backend_that_cannot_tell_printing_from_compiling_compiles_when_asked(cache, monkeypatch):
    monkeypatch.setattr(compile_module, "PrintsBefore", tuple)
    with begun_network(network(), cache=cache) as library:
        assert not threads()
        assert library().path.is_file()
