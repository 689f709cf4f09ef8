"""Products, convolutions, sorts and scans run through PyTorch's libraries, for which the target has no kernels of its own.

    y = x @ w    -->    y = x @ w by a library

The node stays the product that it is: layouts, orders and memory are planned for it as before. It is the last form that a product takes,
so all that fuses with products has been there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from dcir.ir.dace.nodes import Op
from dcir.ir.network import Network
from dcir.ir.refusal import Refusal
from dcir.ops.library.library_call import InLibraries, LibraryCall, refused_by_library
from dcir.transforms.rule import Rule


@dataclass(frozen=True)
class CallLibraries(Rule[None, Op]):
    """Have a library do every product and convolution that it can, and sorts and scans."""

    tier: ClassVar[int] = 1
    in_bodies: ClassVar[bool] = False  # no call into torch is inside of a loop or branch

    def survey(self, net: Network) -> None:
        """Nothing."""

    def pattern(self, net: Network, op: Op, known: None) -> Op | None:
        """What libraries have."""
        return op if isinstance(op.spec, InLibraries) else None

    def check(self, net: Network, match: Op, known: None) -> Refusal | int:
        """Whether the libraries have it."""
        assert isinstance(match.spec, InLibraries)
        return refused_by_library(match.spec) or 0

    def rewrite(self, net: Network, match: Op, known: None) -> Sequence[Op]:
        """The same operands."""
        assert isinstance(match.spec, InLibraries)
        net.rewire(match, LibraryCall(match.spec), net.ins(match), net.outs(match))
        return ()
