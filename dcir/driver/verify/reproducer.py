"""Reproducers: a small graph as a Python file that runs alone, and what such a file calls."""

from __future__ import annotations

import dataclasses
import importlib.util
import math
import re
import sys
from collections.abc import Sequence
from typing import Any

import torch

from dcir.driver.verify.locate import CODE, IMPORT, KERNEL, PASS, Culprit, locate
from dcir.driver.verify.slices import Slice, SliceCall, Source, V
from dcir.errors import Unsupported
from dcir.transforms.base import Pass

_TARGET = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*){0,2}")


def reproduce(part: Slice, passes: Sequence[Pass], *, threads: int, seed: int, kind: str) -> int:
    """Run a reproducer: say what differs from PyTorch, step by step; 1 while something does, else 0."""
    values = part.draw(seed)
    steps = {
        IMPORT: "the network as imported, interpreted",
        PASS: "the network after every pass, interpreted",
        KERNEL: "every kernel against its operator's reference",
        CODE: "the whole code",
    }
    print(f"{len(part.calls)} operators, passes: {', '.join(p.name for p in passes) or 'none'}")
    for step, text in steps.items():
        found = locate(part, values, passes, threads=threads, seed=seed, kinds=(step,))
        if found is None:
            print(f"  agrees   {text}")
            continue
        print(f"  DIFFERS  {text}: error {found.error:.3g}, tolerance {found.tolerance:.3g}")
        print(f"{found.culprit} changes numbers" + ("" if step == kind else f" (it was found as a wrong {kind})"))
        return 1
    print("nothing changes numbers")
    return 0


def reproducer_text(part: Slice, finding: Culprit, threads: int, seed: int) -> str:
    """The file's text. It holds names of operators, numbers and places of passes; no name of the model is in it."""
    lines = [
        f'"""{_one_line(finding.culprit)} changes numbers.',
        "",
        "Run it alone: the exit code is 1 while the defect is there, and 0 once it is gone.",
        f"When it was written, the error was {finding.error:.3g} and the tolerance {finding.tolerance:.3g}.",
        '"""',
        "",
    ]
    imports, loads, made = _passes(finding.passes)
    if any("torch." in literal(c.args) + literal(c.kwargs) for c in part.calls):
        imports.append("import torch")
    imports += [
        "from dcir.driver.verify.reproducer import reproduce",
        "from dcir.driver.verify.slices import Slice, SliceCall, Source, V",
    ]
    lines += [*sorted(set(imports)), *loads]
    lines += ["", "SOURCES = (", *(f"    {_source(s)}," for s in part.sources), ")"]
    lines += ["CALLS = (", *(f"    {_call(c)}," for c in part.calls), ")"]
    lines += [f"RESULTS = {literal(part.results)}", f"PASSES = ({''.join(f'{m}, ' for m in made).strip()})", ""]
    lines += ['if __name__ == "__main__":', "    part = Slice(SOURCES, CALLS, RESULTS)"]
    lines.append(
        f"    raise SystemExit(reproduce(part, PASSES, threads={threads}, seed={seed}, kind={finding.kind!r}))"
    )
    return "\n".join(lines) + "\n"


def _one_line(text: str) -> str:
    return re.sub(r"[^\w .,:;()<>=+-]", "?", text)


def _source(s: Source) -> str:
    parts = [repr(s.name), literal(s.shape), literal(s.strides), repr(s.dtype)]
    if s.data:
        return f"Source({', '.join(parts)}, constant={s.constant}, data={s.data!r})"
    constant = ", constant=True" if s.constant else ""
    return f"Source({', '.join(parts)}, {literal(s.low)}, {literal(s.high)}{constant})"


def _call(c: SliceCall) -> str:
    if not _TARGET.fullmatch(c.target):
        raise Unsupported(f"the operator name {c.target!r} is not written to a file")
    named = f", {literal(c.kwargs)}" if c.kwargs else ""
    return f"SliceCall({c.name!r}, {c.target!r}, {literal(c.args)}{named})"


def literal(value: Any) -> str:
    """Python text of an argument.

    Raises:
        Unsupported: a value of another type than arguments of operators have.
    """
    if isinstance(value, V):
        return f"V({value.name!r})"
    if isinstance(value, tuple):
        return "(" + ", ".join(map(literal, value)) + ("," if len(value) == 1 else "") + ")"
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value!r}")'
    if value is None or isinstance(value, bool | int | float | complex | str):
        return repr(value)
    if isinstance(value, torch.dtype | torch.memory_format | torch.layout):
        return str(value)
    if isinstance(value, torch.device):
        return f"torch.device({str(value)!r})"
    raise Unsupported(f"an argument of type {type(value).__name__} is not written to a file")


def _passes(passes: Sequence[Pass]) -> tuple[list[str], list[str], list[str]]:
    """Imports of the passes' classes, lines that load those of scripts, and the text of each pass."""
    imports: list[str] = []
    scripts: dict[str, list[str]] = {}
    for kind in dict.fromkeys(type(p) for p in passes):
        module = sys.modules.get(kind.__module__)
        path = getattr(module, "__file__", None)
        if kind.__module__ != "__main__" and importlib.util.find_spec(kind.__module__.partition(".")[0]) is not None:
            imports.append(f"from {kind.__module__} import {kind.__qualname__}")
        elif path is not None:
            scripts.setdefault(path, []).append(kind.__qualname__)
        else:
            raise Unsupported(f"the pass {kind.__qualname__} is in no file", hint="put it into a module")
    loads: list[str] = []
    for number, (path, names) in enumerate(scripts.items()):
        imports += ["import importlib.util", "import sys"]
        loads += [
            "",
            f"spec = importlib.util.spec_from_file_location('passes{number}', {path!r})",
            "module = importlib.util.module_from_spec(spec)",
            "sys.modules[spec.name] = module",
            "spec.loader.exec_module(module)",
            *(f"{name} = module.{name}" for name in names),
        ]
    made = [
        f"{type(p).__qualname__}({', '.join(f'{f.name}={getattr(p, f.name)!r}' for f in dataclasses.fields(p))})"
        for p in passes
    ]
    return imports, loads, made
