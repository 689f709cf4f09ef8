"""Graphs whose sizes move, for tests: traced once with symbols, unified, and run at the sizes of each call, interpreted or compiled."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx, nn
from torch._dynamo import mark_dynamic
from torch._functorch.aot_autograd import aot_module_simplified

from dcir.codegen.compile import compile_network
from dcir.driver.moving_graph import MovingGraph, moving_graph
from dcir.driver.moving_program import MovingProgram
from dcir.driver.targets.host import host_target
from dcir.frontends.torch.context import GraphContext
from dcir.frontends.torch.decompose import decompositions
from dcir.frontends.torch.importer import Imported
from dcir.frontends.torch.shapes.given_sizes import symbols
from dcir.ir.dace.symbols import symbol, symbolic_sdfg
from dcir.ir.moving_network import MovingNetwork, fixed
from dcir.ir.refusal import Refusal
from dcir.ir.sizes import Bounds
from dcir.transforms.pipelines import pipeline
from tests.harness import run_interpreted


class Moving:
    """A function compiled once for all lengths.

    Args:
        fn: the function.
        bounds: of its sizes, in the order of the arguments.
        level: of the passes.
        generated: whether generated code runs, for a team of two threads; else the interpreter does.

    Attributes:
        graphs: what became of every ATen graph: a network whose sizes move, or the reason why there is none.
        seen: the sizes that were run.
    """

    def __init__(
        self, fn: Callable[..., Any], bounds: Sequence[Bounds], level: int = 4, *, generated: bool = False
    ) -> None:
        self.graphs: list[MovingGraph | Refusal] = []
        self.seen: list[dict[str, int]] = []
        self._bounds, self._level, self._generated = bounds, level, generated
        torch._dynamo.reset()
        self._compiled = torch.compile(fn, backend=self._backend, fullgraph=True)

    def __call__(self, *args: torch.Tensor, dims: Sequence[tuple[int, int]]) -> Any:
        """Run it; ``dims`` are the (argument, dimension) that move."""
        for i, d in dims:
            mark_dynamic(args[i], d)
        return self._compiled(*args)

    @property
    def graph(self) -> MovingGraph:
        """The only graph."""
        (found,) = self.graphs
        assert isinstance(found, MovingGraph), found
        return found

    def _backend(self, gm: fx.GraphModule, examples: Sequence[Any]) -> Any:
        return aot_module_simplified(
            gm, list(examples), fw_compiler=self._compile, bw_compiler=self._compile, decompositions=decompositions()
        )  # fmt: skip

    def _compile(self, gm: fx.GraphModule, examples: Sequence[Any]) -> Any:
        # Symbols are created in the order of the arguments, a backward may meet them in another.
        bounds = dict(zip(sorted(symbols(gm), key=lambda s: _first(gm, s)), self._bounds, strict=False))
        found = moving_graph(
            gm, GraphContext(), [bounds[s] for s in symbols(gm)], pipeline(self._level), host_target(2)
        )
        self.graphs.append(found)

        program = None
        if self._generated and isinstance(found, MovingGraph):
            program = MovingProgram(found, compile_network(found.network), prepare="version")

        def run(args: list[Any]) -> list[Any]:
            assert isinstance(found, MovingGraph), found
            values = dict(zip(found.network.sizes, (_value(gm, s, args) for s in found.symbols), strict=True))
            self.seen.append(values)
            if program is not None:
                return program(args)
            done = Imported(found.network.at(values), found.constants, list(fixed(found.outputs, values)))
            return run_interpreted(done, args)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run


def _first(gm: fx.GraphModule, symbol: str) -> int:
    """The extent that the symbol stood for when the graph was traced."""
    for node in gm.graph.find_nodes(op="placeholder"):
        value = node.meta["val"]
        for d in value.shape if isinstance(value, torch.Tensor) else (value,):
            if isinstance(d, torch.SymInt) and str(d.node.expr) == symbol:
                return int(d.node.hint)
    raise AssertionError(symbol)


def _value(gm: fx.GraphModule, symbol: str, args: Sequence[Any]) -> int:
    for node, arg in zip(gm.graph.find_nodes(op="placeholder"), args, strict=True):
        value = node.meta["val"]
        pairs = zip(value.shape, arg.shape, strict=True) if isinstance(value, torch.Tensor) else [(value, arg)]
        for d, n in pairs:
            if isinstance(d, torch.SymInt) and str(d.node.expr) == symbol:
                return int(n)
    raise AssertionError(symbol)


class Encoder(nn.Module):
    """Two layers as in BERT, with a mask and learnt positions."""

    def __init__(self, width: int = 24, heads: int = 3, layers: int = 2) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(50, width), nn.Embedding(600, width)
        self.layers = nn.ModuleList(EncoderLayer(width, heads) for _ in range(layers))

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        for layer in self.layers:
            x = layer(x, (1 - mask[:, None, None, :]) * -1e4)
        return x, (x * mask[:, :, None]).mean(1)


class EncoderLayer(nn.Module):
    """Attention and two products, with a norm after each."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        b, n, width = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / math.sqrt(width // self.heads) + mask
        x = self.first(x + self.out((torch.softmax(scores, -1) @ v).transpose(1, 2).reshape(b, n, width)))
        return self.second(x + self.down(nn.functional.gelu(self.up(x))))


class Decoder(nn.Module):
    """One layer as in Llama: rotary positions, grouped heads, causal attention, a gated product."""

    def __init__(self, width: int = 32, heads: int = 4, keys: int = 2) -> None:
        super().__init__()
        self.heads, self.keys, self.part = heads, keys, width // heads
        self.tokens, self.head = nn.Embedding(50, width), nn.Linear(width, 50, bias=False)
        self.q, self.k, self.v, self.o = (
            nn.Linear(width, n * self.part, bias=False) for n in (heads, keys, keys, heads)
        )
        self.gate, self.up, self.down = nn.Linear(width, 88), nn.Linear(width, 88), nn.Linear(88, width)
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(3))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        b, n = ids.shape
        x = self.tokens(ids)
        frequencies = 100.0 ** (-torch.arange(0, self.part, 2) / self.part)
        angles = torch.outer(torch.arange(n), frequencies).repeat(1, 2)
        y = self.norms[0](x)
        q, k, v = (f(y).view(b, n, -1, self.part).transpose(1, 2) for f in (self.q, self.k, self.v))
        q, k = (t * angles.cos() + torch.cat((-t[..., self.part // 2 :], t[..., : self.part // 2]), -1) * angles.sin()
                for t in (q, k))  # fmt: skip
        k, v = (t.repeat_interleave(self.heads // self.keys, 1) for t in (k, v))
        a = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(a.transpose(1, 2).reshape(b, n, -1))
        y = self.norms[1](x)
        return self.head(self.norms[2](x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))))


def check_memlets(net: MovingNetwork, values: Mapping[str, int]) -> int:
    """Hold the memlets of the SDFG with symbols against those of the constant network for some sizes.

    Returns:
        How many span a dimension of which less is touched, or are dynamic where those are not.
    """
    state, constant = symbolic_sdfg(net).start_state, net.at(values)
    given, vague = {symbol(name): value for name, value in values.items()}, 0

    def place(e: Any) -> tuple[str, ...]:
        return e.src.label, e.dst.label, str(e.src_conn), str(e.dst_conn)

    edges = {place(e): e.data for e in constant.state.edges()}
    for e in state.edges():
        want = edges[place(e)]
        got = [tuple(int(n.subs(given)) for n in r) for r in e.data.subset.ranges]
        spans = any(
            tuple(map(int, r)) != g and g == (0, max(n, 1) - 1, 1)
            for r, g, n in zip(want.subset.ranges, got, constant.containers[want.data].shape or (1,), strict=True)
        )
        assert spans or got == [tuple(map(int, r)) for r in want.subset.ranges], (e.data, want)
        assert e.data.dynamic or e.data.volume.subs(given) == want.volume, (e.data, e.data.volume, want.volume)
        vague += spans or (e.data.dynamic and not want.dynamic)
    return vague
