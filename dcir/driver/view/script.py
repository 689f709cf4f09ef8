"""A change as a script: Python that compiles the model the same way in any other process."""

from __future__ import annotations

from dcir.driver.view.delta import Delta
from dcir.driver.view.subject import Subject
from dcir.options import Options

_OWN = ("level", "target", "threads", "precision", "memory_limit", "strict")


def script(subject: Subject, base: Options, delta: Delta) -> str:
    """The script; every value in it is written as Python writes it, whatever it says."""
    options = delta.options(base)
    default = Options()
    given: dict[str, str] = {
        name: repr(value) for name in _OWN if (value := getattr(options, name)) != getattr(default, name)
    }
    if options.skip:
        given["skip"] = repr(list(options.skip))
    imports, opening = _split(_opening(subject, delta))
    own = base.pipeline is not None
    if delta.rewrites:
        given["pipeline"] = "passes"
        imports += [] if own else ["from dcir.driver.targets.host import host_target"]
    lines = ["from dataclasses import replace", ""] if delta.rewrites else []
    lines += ["import torch", "", "import dcir", *sorted(imports), ""]
    if options.threads is not None:
        lines.append(f"torch.set_num_threads({options.threads})")
    lines += opening
    if delta.rewrites:
        lines += _pipeline(options, delta, own=own)
    arguments = ", ".join(["model", *(f"{name}={value}" for name, value in given.items()), "dynamic=False"])
    return "\n".join([*lines, f"fast = dcir.optimize({arguments})", *_call(subject)]) + "\n"


def _pipeline(options: Options, delta: Delta, *, own: bool) -> list[str]:
    target = "" if options.target == Options().target else f", {options.target!r}"
    given = "pipeline" if own else f"host_target({options.threads!r}{target}).pipeline({options.level})"
    fields = {name: dict(values) for name, values in sorted(delta.fields.items())}
    return [
        *(["# pipeline: yours"] if own else []),
        f"without = {sorted(delta.disable)!r}",
        f"fields = {fields!r}",
        "passes = [",
        "    replace(p, **fields.get(p.name, {}))",
        f"    for p in {given}",
        "    if p.name not in without",
        "]",
    ]


def _split(lines: list[str]) -> tuple[list[str], list[str]]:
    """Imports, and what is no import and not empty."""
    imports = [line for line in lines if line.startswith(("import ", "from "))]
    return imports, [line for line in lines if line and line not in imports]


def _opening(subject: Subject, delta: Delta) -> list[str]:
    if delta.batch is None or subject.source == "module":
        return list(subject.opening)
    # The last argument of what opens the model is its batch.
    found = []
    for line in subject.opening:
        if line.startswith("opened = ") and line.endswith(")"):
            line = line.removesuffix(f", batch={subject.batch!r})").removesuffix(")") + f", batch={delta.batch!r})"
        found.append(line)
    return found


def _call(subject: Subject) -> list[str]:
    if not subject.trains:
        return [
            "",
            "import torch",
            "",
            "with torch.no_grad():",
            "    out = fast(*inputs)",
            "print(fast.dcir.explain())",
        ]
    return [
        "fast.train()",
        "out = fast(*inputs)",
        "loss = sum(t.square().mean() for t in (out if isinstance(out, (tuple, list)) else [out]))",
        "loss.backward()",
        "print(fast.dcir.explain())",
    ]
