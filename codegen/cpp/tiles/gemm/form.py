"""The normal form of a matrix product: unit batches gone, batches of rows merged, and where the epilogue's loops went."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from dcir.ir.loop_nest import LoopNest
from dcir.ir.statements import Access, Index, Load, Store
from dcir.ir.types import itemsize
from dcir.ops.library.contraction import ContractionSpec


@dataclass(frozen=True)
class ProductForm:
    """A product with its epilogue apart.

    Attributes:
        spec: the product, without an epilogue.
        epilogue: the epilogue over the dimensions of the node's result.
        places: the epilogue's dimension behind each of (*batch, m, n). A dimension that is gone has index 0: its extent was 1, or
            another dimension walks on over it.
        swapped: whether it is C' = B' A' of the product that it was made from.
    """

    spec: ContractionSpec
    epilogue: LoopNest | None
    places: tuple[int, ...]
    swapped: bool = False

    def along(self, dimension: int) -> bool:
        """Whether the first result has neighbours along a dimension (-1: n, -2: m)."""
        if self.epilogue is None:
            return self.spec.c[dimension] == 1
        stores = [s for s in self.epilogue.body if isinstance(s, Store)]
        return stores[0].strides[self.places[dimension]] == 1

    @property
    def packed_bytes(self) -> int:
        """What B takes in panels, without padding."""
        spec = self.spec
        held = math.prod(d for d, s in zip(spec.batch, spec.b, strict=False) if s) * spec.n * spec.k
        return held * itemsize(spec.dtype)

    def indices(self, batch: list[str], m: str, n: str) -> str:
        """Arguments for the epilogue's loop variables."""
        given = dict(zip(self.places, (*batch, m, n), strict=True))
        rank = len(self.epilogue.outer) if self.epilogue is not None else 0
        return ", ".join(given.get(d, "0") for d in range(rank))


def normal_form(spec: ContractionSpec) -> ProductForm:
    """The form of a node's spec, batches merged."""
    rank = len(spec.batch) + 2
    return merge_batch(ProductForm(replace(spec, epilogue=None), spec.epilogue, tuple(range(rank))))


def transposed(form: ProductForm) -> ProductForm:
    """The same product as C' = B' A'."""

    def swap(s: tuple[int, ...]) -> tuple[int, ...]:
        return (*s[:-2], s[-1], s[-2])

    spec = form.spec
    made = replace(spec, m=spec.n, n=spec.m, a=swap(spec.b), b=swap(spec.a), c=swap(spec.c))
    return replace(form, spec=made, places=swap(form.places), swapped=not form.swapped)


def merge_batch(form: ProductForm) -> ProductForm:
    """Batch dimensions become rows (or, of an unpacked B, columns) where the other operand is the same for all of them."""
    for flipped in (False, True) if not form.spec.panel else (False,):
        form = transposed(form) if flipped else form
        while (smaller := _merge_one(form)) is not None:
            form = smaller
        form = transposed(form) if flipped else form
    return form


def _merge_one(form: ProductForm) -> ProductForm | None:
    s, places = form.spec, form.places
    # The innermost first: the one row of a product becomes those that lie next to each other.
    for d, extent in reversed(list(enumerate(s.batch))):
        drop = extent == 1
        rows = s.b[d] == 0 and (s.m == 1 or (s.a[d], s.c[d]) == (s.a[-2] * s.m, s.c[-2] * s.m))
        rows = rows and (s.m == 1 or _walks_on(form.epilogue, places[d], places[-2], s.m))
        if not drop and not rows:
            continue
        a, b, c = ((*t[:d], *t[d + 1 :]) for t in (s.a, s.b, s.c))
        left = (*places[:d], *places[d + 1 :])
        if not drop:
            if s.m == 1:
                a, c = (*a[:-2], s.a[d], a[-1]), (*c[:-2], s.c[d], c[-1])
                left = (*left[:-2], places[d], left[-1])
            s = replace(s, m=s.m * extent)
        return replace(form, spec=replace(s, batch=(*s.batch[:d], *s.batch[d + 1 :]), a=a, b=b, c=c), places=left)
    return None


def _walks_on(epilogue: LoopNest | None, outer: int, inner: int, extent: int) -> bool:
    """Whether every address walks dimension ``outer`` as ``inner`` would past its end at ``extent``."""
    if epilogue is None:
        return True
    return all(
        s.strides[outer] == s.strides[inner] * extent
        for s in epilogue.body
        if isinstance(s, Access) and not (isinstance(s, Load) and s.operand == 0)
    ) and all(s.dim not in (outer, inner) for s in epilogue.body if isinstance(s, Index))
