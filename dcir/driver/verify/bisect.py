"""`dcir check --bisect`: finds what changes a model's numbers, makes the graph around it small, and writes a reproducer."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dcir.driver.verify.locate import CODE, IMPORT, KERNEL, PASS, Culprit, locate
from dcir.driver.verify.reproducer import reproducer_text
from dcir.driver.verify.slices import Slice, Source, Values, described, size_of, slice_of, smaller, used, with_data
from dcir.frontends.torch.export import export_inference
from dcir.options import Options
from dcir.transforms.base import Pass

SEEDS = range(3)
_DATA_LIMIT = 65_536


@dataclass(frozen=True)
class Bisection:
    """What changes the numbers of a model.

    Attributes:
        finding: the pass or the kernel; None: no step changes numbers by more than rounding.
        calls: operators of the smallest graph that shows it (0: it shows with the model's own numbers only).
        path: the reproducer's file.
    """

    finding: Culprit | None
    calls: int = 0
    path: Path | None = None


def bisect_module(
    module: nn.Module, inputs: Sequence[Any], destination: str | os.PathLike[str], **options: Any
) -> Bisection:
    """Bisect the forward pass of a module; see ``bisect_graph``. ``options`` are those of ``dcir.optimize``."""
    exported = export_inference(module, inputs)
    part, values = slice_of(exported.graph, [s.tensor for s in exported.state], list(inputs))
    return bisect_graph(part, values, Options.make(**options), destination)


def bisect_graph(
    part: Slice, values: Values, options: Options, destination: str | os.PathLike[str], *, seed: int = 0
) -> Bisection:
    """Find the first step that changes a graph's numbers, and write a small program that shows it.

    Args:
        part, values: the graph and its inputs.
        options: the level or the pipeline, and the number of threads.
        destination: the reproducer's file.
        seed: of random operators and of the reproducer's inputs.
    """
    search = _BisectSearch(options, seed)
    finding = search.locate(part, values, search.passes)
    if finding is None:
        return Bisection(None)
    drawn = search.drawable(part, values, finding)
    if drawn is None:
        return Bisection(finding)
    part, finding = search.minimised(*drawn)
    path = Path(destination)
    path.write_text(reproducer_text(part, finding, search.threads, search.seed))
    return Bisection(finding, len(part.calls), path)


class _BisectSearch:
    """Tries graphs made smaller; one counts as long as it shows the same defect."""

    def __init__(self, options: Options, seed: int) -> None:
        from dcir.transforms.pipelines import pipeline

        chosen: Any = options.pipeline if options.pipeline is not None else pipeline(options.level)
        self.passes: tuple[Pass, ...] = tuple(chosen)
        if options.until is not None:
            names = [p.name for p in self.passes]
            self.passes = self.passes[: len(names) - names[::-1].index(options.until)]
        self.threads = options.threads or torch.get_num_threads()
        self.seed = seed

    def locate(self, part: Slice, values: Values, passes: Sequence[Pass], kinds: Sequence[str] = ()) -> Culprit | None:
        """What changes numbers, with these passes."""
        kinds = kinds or (IMPORT, PASS, KERNEL, CODE)
        return locate(part, values, passes, threads=self.threads, seed=self.seed, kinds=kinds)

    def shows(self, part: Slice, like: Culprit, passes: Sequence[Pass]) -> Culprit | None:
        """The finding on drawn inputs, if it is the same defect."""
        if not part.calls or not part.results:
            return None
        try:
            found = self.locate(part, part.draw(self.seed), passes, (like.kind,))
        except (
            Exception
        ):  # a graph cut or shrunk into something that torch, a pass or an emitter refuses is no candidate
            return None
        if found is None or not like.alike(found):
            return None
        if like.kind == PASS and len(found.passes) == 1:  # the runner compares after passes only
            return found if self.locate(part, part.draw(self.seed), (), (IMPORT,)) is None else None
        return found

    def drawable(
        self, part: Slice, values: Values, finding: Culprit
    ) -> tuple[Slice, Culprit, dict[str, Source]] | None:
        """The graph with inputs that are drawn, or, where drawn ones show nothing, written down."""
        known: dict[str, Source] = {}
        kept: dict[str, Tensor] = dict(values)

        def seen(name: str, value: Tensor) -> None:
            with contextlib.suppress(Exception):
                known[name] = described(name, value)
            if value.numel() <= _DATA_LIMIT:
                kept[name] = value.clone(memory_format=torch.preserve_format)

        part.evaluate(values, self.seed, seen)
        start = self.seed
        for seed in (start + s for s in SEEDS):
            self.seed = seed
            if found := self.shows(part, finding, finding.passes):
                return part, found, known
        self.seed = start
        # The model's own numbers: first as few operators as show it, whose inputs then go into the file.
        for slim in self._ends(part, known):
            if sum(kept[s.name].numel() for s in slim.sources if s.name in kept) > _DATA_LIMIT:
                continue
            if any(s.name not in kept for s in slim.sources):
                continue
            slim = with_data(slim, kept)
            if found := self.shows(slim, finding, finding.passes):
                return slim, found, {}
        return None

    def _ends(self, part: Slice, known: dict[str, Source]) -> Iterator[Slice]:
        """Windows of the graph, the shortest first."""
        names = [c.name for c in part.calls]
        width = 1
        while width < len(names):
            for start in range(0, len(names), max(1, width // 2)):
                with contextlib.suppress(KeyError):
                    yield part.only(names[start : start + width], known)
            width *= 2
        yield part

    def minimised(self, part: Slice, finding: Culprit, known: dict[str, Source]) -> tuple[Slice, Culprit]:
        """Fewer operators, fewer passes, fewer operators again, smaller sizes."""
        part, finding = self._fewer_calls(part, finding, known)
        finding = self._fewer_passes(part, finding)
        part, finding = self._fewer_calls(part, finding, known)
        return self._smaller(part, finding)

    def _fewer_calls(self, part: Slice, finding: Culprit, known: dict[str, Source]) -> tuple[Slice, Culprit]:
        """Delta debugging over the operators (Zeller and Hildebrandt, 2002), then the results that do not differ."""
        whole = part

        def attempt(names: Sequence[str]) -> bool:
            nonlocal part, finding
            try:
                candidate = whole.only(names, known)
            except KeyError:  # it would begin with a value that is no tensor
                return False
            found = self.shows(candidate, finding, finding.passes)
            if found is None:
                return False
            part, finding = candidate, found
            return True

        names = [c.name for c in part.calls]
        if finding.kind != KERNEL:
            names = self._results(part, finding, attempt, names)
        chunks = 2
        while len(names) > 1:
            size = -(-len(names) // chunks)
            pieces = [names[i : i + size] for i in range(0, len(names), size)]
            rests = [[n for n in names if n not in set(piece)] for piece in pieces]
            if (best := next((piece for piece in pieces if attempt(piece)), None)) is not None:
                names, chunks = best, 2
            elif chunks > 2 and (best := next((rest for rest in rests if attempt(rest)), None)) is not None:
                names, chunks = best, max(chunks - 1, 2)
            elif chunks >= len(names):
                break
            else:
                chunks = min(len(names), chunks * 2)
        for result in part.results if len(part.results) > 1 else ():
            with contextlib.suppress(KeyError):
                candidate = part.only([c.name for c in part.calls], known, [result])
                if found := self.shows(candidate, finding, finding.passes):
                    return candidate, found
        return part, finding

    def _results(
        self, part: Slice, finding: Culprit, attempt: Callable[[Sequence[str]], bool], names: list[str]
    ) -> list[str]:
        """Only what the worst result needs, if that is enough."""
        needed, kept = {part.results[finding.result]}, []
        for c in reversed(part.calls):
            if c.name in needed:
                kept.append(c.name)
                needed.update(used(c))
        kept.reverse()
        return kept if len(kept) < len(names) and attempt(kept) else names

    def _fewer_passes(self, part: Slice, finding: Culprit) -> Culprit:
        """Without the passes before the culprit that it does not need; of a kernel or an import, without any."""
        fixed = 1 if finding.kind in (PASS, CODE) and finding.passes else 0
        if len(finding.passes) > fixed:
            end = len(finding.passes) - fixed
            if found := self.shows(part, finding, finding.passes[end:]):
                return found
        number = 0
        while number < len(finding.passes) - fixed:
            fewer = finding.passes[:number] + finding.passes[number + 1 :]
            if found := self.shows(part, finding, fewer):
                finding = found
            else:
                number += 1
        return finding

    def _smaller(self, part: Slice, finding: Culprit) -> tuple[Slice, Culprit]:
        """Every extent as small as still shows it."""
        for old in sorted({d for s in part.sources for d in s.shape if d > 1}, reverse=True):
            for new in dict.fromkeys((1, 2, 3, 4, old // 8, old // 4, old // 2, old - 1)):
                if not 0 < new < old:
                    continue
                candidate = smaller(part, old, new)
                if size_of(candidate) < size_of(part) and (found := self.shows(candidate, finding, finding.passes)):
                    part, finding = candidate, found
                    break
        return part, finding
