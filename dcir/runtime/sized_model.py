"""A compiled network for sizes within bounds, as a module: the program for a call's sizes, or pieces that cover its batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dcir.batch_buckets import cover
from dcir.dynamic import check_size
from dcir.errors import InvalidInput
from dcir.runtime.blocks import Arenas
from dcir.runtime.manifest import Manifest
from dcir.runtime.model import CompiledModel, Loaded, check_readable, in_order, like, rebuilder
from dcir.runtime.moving_parts import MovingParts
from dcir.runtime.sized_manifest import Dimension, SizedManifest


class LoadedSizes(Loaded):
    """What ``model.dcir`` offers.

    Attributes:
        sizes: which programs there are.
        programs: manifest and library of each; what all have in common is read off the first.
    """

    def __init__(
        self,
        sizes: SizedManifest,
        manifests: Sequence[Manifest],
        libraries: Sequence[Path],
        report: Callable[[], Mapping[str, Any]],
    ) -> None:
        super().__init__(manifests[0], libraries[0], report)
        self.sizes = sizes
        self.programs = [Loaded(m, library, report) for m, library in zip(manifests, libraries, strict=True)]

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        """The sizes that may differ from call to call, with their bounds."""
        return self.sizes.dimensions

    def shapes(self, sizes: Sequence[int]) -> list[tuple[int, ...]]:
        """The shapes of all inputs for sizes of the dimensions."""
        placed = {p: n for d, s in zip(self.dimensions, sizes, strict=True) for p, n in d.at(s).items()}
        return [tuple(placed.get((i, d), n) for d, n in enumerate(x.shape)) for i, x in enumerate(self.inputs)]


class SizedModel(CompiledModel):
    """Calls the compiled library of the sizes that a call has; as `CompiledModel` in everything else."""

    dcir: LoadedSizes

    def __init__(self, loaded: LoadedSizes, tensors: Mapping[str, Tensor]) -> None:
        """A model over ``tensors``, by their names in the manifests; the programs share them."""
        nn.Module.__init__(self)
        nn.Module.train(self, False)
        constants = {c.tensor: c for p in loaded.programs for c in p.manifest.constants}
        self._register((c, tensors[name]) for name, c in constants.items())
        manifest, sizes, arenas = loaded.manifest, loaded.sizes, Arenas()
        parts: dict[tuple[int, ...], CompiledModel] = {}
        wide: list[MovingParts] = []
        for number, p in enumerate(loaded.programs):
            own, moving = [tensors[c.tensor] for c in p.manifest.constants], sizes.moving[number]
            if moving is None:
                parts[sizes.programs[number]] = CompiledModel(p, own)
            else:
                wide.append(MovingParts(p, moving, sizes.box(number), own, arenas))
        # Not as modules of this one: their state is this one's.
        self.__dict__["dcir"] = loaded
        self.__dict__["_tensors"] = list(tensors.values())
        self.__dict__["_names"] = list(tensors)
        self.__dict__["_parts"], self.__dict__["_wide"] = parts, wide
        self.__dict__["_pieces"] = sizes.pieces() if sizes.batch >= 0 else {}
        self.__dict__["_shape_of_result"] = rebuilder(manifest.result, len(manifest.outputs))

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """See ``forward``."""
        return nn.Module.__call__(self, *inputs, **named)

    def forward(self, *inputs: Tensor, **named: Tensor) -> Any:
        """Run the model.

        Args:
            inputs: one tensor per input; sizes within the bounds that the file was compiled for.
            named: or by name.

        Raises:
            InvalidInput: a size lies outside its bounds, or whatever else `CompiledModel` refuses.
            IndexOutOfRange: an index in the inputs leads outside a tensor.
            FallbackFailed: an operator run through torch failed.
        """
        inputs = in_order(self.dcir.inputs, inputs, named)
        sizes = self._sizes(inputs)
        part = self.__dict__["_parts"].get(sizes)
        if part is not None:
            return part(*inputs)
        wide = next((w for w in self.__dict__["_wide"] if w.holds(sizes)), None)
        out = self._in_pieces(inputs, sizes) if wide is None else wide.results(sizes, inputs)
        rebuild = self.__dict__["_shape_of_result"]
        return out[0] if rebuild is None else rebuild(out)

    def _sizes(self, inputs: Sequence[Any]) -> tuple[int, ...]:
        """The size of each dimension in a call."""
        specs, found = self.dcir.inputs, []
        for spec, x in zip(specs, inputs, strict=True):
            if isinstance(x, Tensor):
                check_readable(spec, x)
        shapes = [tuple(x.shape) if isinstance(x, Tensor) else None for x in inputs]
        for i, (spec, shape) in enumerate(zip(specs, shapes, strict=True)):
            if shape is not None and not self._is_like(i, shape):
                shown = ", ".join(map(str, self._named(i)))
                raise InvalidInput(f"input {spec.name} must have shape [{shown}], it has {list(shape)}")
        seen: dict[str, tuple[str, int]] = {}
        for d in self.dcir.dimensions:
            for (i, dim), known in d.everywhere.items():
                shape = shapes[i]
                if shape is None:
                    raise InvalidInput(f"input {specs[i].name} must be a tensor, it is a {type(inputs[i]).__name__}")
                hint = f"compile the model with other bounds (--bound {d.name}=...; dynamic= in dcir.driver.api.save)"
                check_size(specs[i].name, dim, known, shape[dim], seen, hint)
            found.append(seen[d.name][1])
        return tuple(found)

    def _named(self, number: int) -> list[int | str]:
        """The shape of an input, with names where sizes may differ."""
        shape: list[int | str] = list(self.dcir.inputs[number].shape)
        for d in self.dcir.dimensions:
            for (i, dim), known in d.everywhere.items():
                if i == number:
                    shape[dim] = known.label
        return shape

    def _is_like(self, number: int, shape: tuple[int, ...]) -> bool:
        wanted = self._named(number)
        return len(shape) == len(wanted) and all(
            isinstance(w, str) or w == n for w, n in zip(wanted, shape, strict=True)
        )

    def _in_pieces(self, inputs: Sequence[Tensor], sizes: tuple[int, ...]) -> list[Any]:
        document, parts = self.dcir.sizes, self.__dict__["_parts"]
        at = document.batch
        images, batched = sizes[at], {i for i, _ in document.dimensions[at].places}
        whole: list[Any] = []
        for start, size in cover(images, self.__dict__["_pieces"][document.others(sizes)]):
            given = [x.narrow(0, start, size) if i in batched else x for i, x in enumerate(inputs)]
            results = parts[*sizes[:at], size, *sizes[at + 1 :]].results(given)
            if not whole:
                whole = [
                    torch.empty_strided((images, *t.shape[1:]), t.stride(), dtype=t.dtype)
                    if isinstance(t, Tensor)
                    else t
                    for t in results
                ]
            for into, t in zip(whole, results, strict=True):
                if isinstance(t, Tensor):
                    into.narrow(0, start, size).copy_(t)
        return whole

    def __deepcopy__(self, memo: dict[int, Any]) -> SizedModel:
        state = self.__dict__
        twin = SizedModel(self.dcir, {n: like(t) for n, t in zip(state["_names"], state["_tensors"], strict=True)})
        memo[id(self)] = twin
        return twin
