"""The differential check: the reference interpreter before the passes and after each of them, on random inputs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from dcir.errors import FallbackFailed, VerificationFailed
from dcir.ir.interpret import interpret
from dcir.ir.loop_nest import LoopNest
from dcir.ir.network import Network, Result
from dcir.ir.statements import Const, Gather, Index, Read, Store
from dcir.ir.types import TYPES, bf16_to_f32, f32_to_bf16, to_numpy
from dcir.ops.library.torch_call import TorchCall
from dcir.transforms.base import Pass
from dcir.user_code import warn_user

Array = np.ndarray[Any, np.dtype[Any]]

RELATIVE = {"f64": 1e-12, "c128": 1e-12, "f32": 1e-5, "c64": 1e-5, "f16": 4e-3, "bf16": 2e-2}
"""Allowed error of a result next to its largest magnitude."""
FLIPPED = 1e-3
"""Allowed share of different elements of a whole-number or bool result: a last bit can flip a comparison."""
NOISE = 16.0
"""A result may also be off by this multiple of what changing the last bit of every input does to it."""
_DEFAULT_BOUND = 4


@dataclass(frozen=True)
class _Amplitudes:
    """How inputs are drawn: intervals for vectors and for larger tensors, these scaled down by their rows' length."""

    vectors: tuple[float, float]
    tensors: tuple[float, float]
    power: float  # of the row length


_DRAWS = (
    _Amplitudes((0.5, 1.5), (-1.7, 1.7), 0.5),  # vectors may be variances, matrices weights: magnitudes stay
    _Amplitudes((0.5, 1.5), (0.5, 1.5), 1.0),
    _Amplitudes((-1.0, 1.0), (-1.0, 1.0), 0.5),
)


class PassChecker:
    """Compares results after every pass with those before all passes; the runner's ``after`` hook.

    Attributes:
        seed: of the random inputs.
        buffers: the inputs and constants it runs the network on.
    """

    def __init__(self, net: Network, seed: int = 0, buffers: Mapping[str, Array] | None = None) -> None:
        """Run the network as it is now.

        Args:
            net: the network before the passes.
            seed: of the random inputs.
            buffers: elements of input and constant containers that are not to be random.
        """
        self.seed = seed
        self.buffers, want = self._draw(net, dict(buffers or {}))
        self._want = want
        near = {n: self._perturbed(net, n, v) for n, v in self.buffers.items()}
        self._near: list[Array] = [] if want is None else self._run(net, near)

    def __call__(self, p: Pass, net: Network) -> None:
        """Check the network after a pass.

        Raises:
            VerificationFailed: a result is beyond its tolerance.
        """
        if self._want is None:
            return
        worst, found = 1.0, None
        for number, got in enumerate(self._run(net, self.buffers)):
            result = net.results[number]
            error, tolerance = distance(got, self._want[number], self._near[number], result.dtype)
            ratio = error / tolerance if tolerance else (math.inf if error else 0.0)
            if ratio > worst or math.isnan(ratio):
                worst, found = ratio, (number, result, error, tolerance)
        if found is None:
            return
        number, result, error, tolerance = found
        shape = "x".join(map(str, result.shape)) or "scalar"
        raise VerificationFailed(
            f"pass {p.name} changed the network's numbers",
            details=[
                ("result", f"{number} of {len(net.results)}: {result.dtype} {shape}"),
                ("error", f"{error:.3g}"),
                ("tolerance", f"{tolerance:.3g}"),
            ],
            hint="leave the pass out of the pipeline, and please report the model",
        )

    def _draw(self, net: Network, given: dict[str, Array]) -> tuple[dict[str, Array], list[Array] | None]:
        """Inputs on which as many results as possible are finite, and the results (None if the network does not run)."""
        least, problem = math.inf, ""
        best: tuple[dict[str, Array], list[Array] | None] = {}, None
        bounds = index_bounds(net)
        for cap in (None, 1):  # all indices 0, should one of the bounds have been missed
            for how in _DRAWS:
                buffers = {n: given[n] if n in given else self._random(net, n, how, bounds, cap) for n in _sources(net)}
                try:
                    want = self._run(net, buffers)
                except (IndexError, ValueError, FallbackFailed) as e:
                    problem = str(e)
                    continue
                lost = sum(float((~np.isfinite(w)).mean()) for w in want if w.size and w.dtype.kind in "fc")
                if lost < least:
                    least, best = lost, (buffers, want)
                if not lost:
                    return best
            if best[1] is not None:
                return best
        warn_user(f"passes are not checked, the network does not run on random inputs: {problem}", UserWarning)
        return best

    def _random(self, net: Network, name: str, how: _Amplitudes, bounds: Mapping[str, int], cap: int | None) -> Array:
        c = net.containers[name]
        # A stream of its own for every container, so that passes or draws that add containers change no other.
        rng = np.random.default_rng([self.seed, *name.encode()])
        kind = TYPES[c.dtype].kind
        if kind == "bool":
            return rng.integers(0, 2, c.size).astype(bool)
        if kind in ("int", "uint"):
            high = bounds.get(name, _DEFAULT_BOUND) if cap is None else cap
            return rng.integers(0, max(1, min(high, 127)), c.size).astype(to_numpy(c.dtype))
        if kind == "bits":  # below 64 none of the 8-bit floats is infinite or no number
            return rng.integers(0, 64, c.size).astype(to_numpy(c.dtype))
        low, high_f = how.vectors if len(c.shape) < 2 else how.tensors
        values = rng.uniform(low, high_f, c.size)
        if len(c.shape) > 1:
            values /= max(1, math.prod(c.shape[1:])) ** how.power
        return _stored(values if kind == "float" else values * (1 + 1j), c.dtype)

    def _perturbed(self, net: Network, name: str, buffer: Array) -> Array:
        dtype = net.containers[name].dtype
        if TYPES[dtype].kind not in ("float", "complex"):
            return buffer
        rng = np.random.default_rng([self.seed, 1, *name.encode()])
        wide = bf16_to_f32(buffer).astype(np.float64) if dtype == "bf16" else buffer
        return _stored(wide * (1 + TYPES[dtype].epsilon * rng.choice([-1.0, 1.0], buffer.size)), dtype)

    def _run(self, net: Network, buffers: Mapping[str, Array]) -> list[Array]:
        # Real numbers, although the graph is being traced.
        with unset_fake_temporarily(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            store = interpret(net, buffers, keep=net.result_containers())
        return [_window(store[r.data], r) for r in net.results]


def _sources(net: Network) -> list[str]:
    return [n for n in (*net.inputs, *net.constants) if n]


def _stored(values: Array, dtype: str) -> Array:
    with np.errstate(all="ignore"):
        return f32_to_bf16(values.astype(np.float32)) if dtype == "bf16" else values.astype(to_numpy(dtype))


def _window(buffer: Array, r: Result) -> Array:
    """A result's elements, bf16 as f32."""
    if 0 in r.shape:
        return np.zeros(r.shape, to_numpy(r.dtype))
    size = buffer.dtype.itemsize
    window = np.lib.stride_tricks.as_strided(buffer[r.offset :], r.shape, [s * size for s in r.strides])
    return bf16_to_f32(window) if r.dtype == "bf16" else window.copy()


def distance(got: Array, want: Array, near: Array, dtype: str) -> tuple[float, float]:
    """Error of a result and what is allowed.

    Args:
        got: the result in question.
        want: what it should be.
        near: what it would be if the last bit of every input were another.
        dtype: its element type; bf16 comes as f32.
    """
    if got.shape != want.shape:
        return math.inf, 0.0
    if not got.size:
        return 0.0, 0.0
    if dtype not in RELATIVE:
        return float((got != want).mean()), FLIPPED + NOISE * float((near != want).mean())
    with np.errstate(all="ignore"):
        g, w, n = (v.astype(np.complex128 if v.dtype.kind == "c" else np.float64) for v in (got, want, near))
        settled = np.isfinite(w) == np.isfinite(n)  # elsewhere the last bit of an input decides
        both = np.isfinite(w) & np.isfinite(n)
        elsewhere = settled & ~both
        if (~np.isfinite(g[both])).any() or not np.array_equal(g[elsewhere], w[elsewhere], equal_nan=True):
            return math.inf, 0.0
        error = float(np.abs(g - w)[both].max(initial=0.0))
        noise = float(np.abs(n - w)[both].max(initial=0.0))
        return error, RELATIVE[dtype] * float(np.abs(w)[both].max(initial=0.0)) + NOISE * noise


def index_bounds(net: Network) -> dict[str, int]:
    """For containers of whole numbers that are used as indices: the least extent they index, found against the order."""
    bounds: dict[str, int] = {}

    def limit(table: dict[Any, int], key: Any, bound: int) -> None:
        table[key] = min(bound, table.get(key, bound))

    for op in reversed(net.ops()):
        ins, outs = net.ins(op), net.outs(op)
        if isinstance(op.spec, TorchCall):
            extents = [d for shape, _, dtype in op.spec.ins if TYPES[dtype].kind == "float" for d in shape if d]
            for o, (_, _, dtype) in zip(ins, op.spec.ins, strict=True):
                if TYPES[dtype].kind in ("int", "uint"):
                    limit(bounds, o.data, min(extents, default=1))
        if not isinstance(op.spec, LoopNest):
            continue
        needs: dict[int, int] = {}
        for i in range(len(op.spec.body) - 1, -1, -1):
            s = op.spec.body[i]
            if isinstance(s, Store) and outs[s.operand].data in bounds:
                limit(needs, s.args[0], bounds[outs[s.operand].data])
            elif isinstance(s, Gather):
                for a, extent in zip(s.args, s.extents, strict=False):
                    limit(needs, a, extent)
            if i not in needs:
                continue
            if isinstance(s, Read):
                limit(bounds, ins[s.operand].data, needs[i])
            elif not isinstance(s, (Const, Index)):
                for a in s.args:
                    limit(needs, a, needs[i])
    return bounds
