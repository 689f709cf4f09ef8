"""Writes a .dcir file for sizes within bounds: the programs in folders of their own, the weights once for all of them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from dcir.driver.ahead.artefact import as_json, graph_record, listed, manifest_of, offsets, pack, write_members
from dcir.driver.ahead.compile_sizes import Sized
from dcir.driver.ahead.header import header_text
from dcir.driver.ahead.moving_manifest import moving_of
from dcir.runtime import artefact as layout
from dcir.runtime import sized_manifest as schema
from dcir.runtime.manifest import Constant, Manifest


def write_sized_artefact(path: str | os.PathLike[str], sized: Sized, report: Mapping[str, Any]) -> None:
    """Write a network for sizes within bounds to ``path``; the file appears whole or not at all.

    Raises:
        Unsupported: the results are nested in something other than tuples, lists and dicts.
        OSError: the file cannot be written.
    """
    weights: dict[str, torch.Tensor] = {}
    layouts: dict[str, Constant] = {}
    manifests: list[Manifest] = []
    for program in sized.programs:
        manifest, own = manifest_of(program.compiled)
        constants = tuple(_shared(c, own[c.tensor], weights, layouts) for c in manifest.constants)
        manifests.append(replace(manifest, constants=constants))
    data = pack(weights)
    pairs = list(zip(sized.programs, manifests, strict=True))
    moving = tuple(moving_of(p.compiled, p.axes, m) if p.axes else None for p, m in pairs)
    members: dict[str, bytes] = {layout.WEIGHTS: data, layout.REPORT: as_json(report)}
    for number, (program, manifest) in enumerate(pairs):
        made = {
            layout.MANIFEST: as_json(manifest.to_json()),
            layout.LIBRARY: program.compiled.library.path.read_bytes(),
            layout.HEADER: header_text(manifest, offsets(data), moving[number], sized.dimensions).encode(),
            layout.GRAPH: graph_record(program.compiled),
        }
        members |= {schema.member(number, name): content for name, content in made.items()}
    sizes = tuple(p.sizes for p in sized.programs)
    document = schema.SizedManifest(schema.FORMAT, {}, sized.dimensions, sized.batch, sizes, moving)
    members[layout.MANIFEST] = as_json({**document.to_json(), "files": listed(members)})
    write_members(path, {name: members[name] for name in schema.members(len(sized.programs))})


def _shared(
    constant: Constant, tensor: torch.Tensor, weights: dict[str, torch.Tensor], layouts: dict[str, Constant]
) -> Constant:
    """A constant of a program, under the name of the weight that it is, which other programs may have brought."""
    name, number = constant.tensor, 0
    while name in weights and not (_alike(constant, layouts[name]) and _same(tensor, weights[name])):
        number += 1
        name = f"{constant.tensor}.{number}"
    weights.setdefault(name, tensor)
    layouts.setdefault(name, constant)
    return replace(constant, tensor=name)


def _alike(a: Constant, b: Constant) -> bool:
    return (a.names, a.shape, a.strides, a.dtype) == (b.names, b.shape, b.strides, b.dtype)


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors hold the same bits."""
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(_bits(a), _bits(b))


def _bits(t: torch.Tensor) -> torch.Tensor:
    return t.reshape(-1).view(torch.uint8)
