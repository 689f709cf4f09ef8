"""Measures the alternatives of a network's kernels, those with the largest share of its time first, and keeps what wins."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch._subclasses.fake_tensor import unset_fake_temporarily

from dcir.cache import Cache
from dcir.codegen.choices import MODELS, Choice
from dcir.codegen.invocations import invocations
from dcir.codegen.registry import Emitters
from dcir.codegen.tuned import MOST_TIMES, Database, Times, Verdict
from dcir.cost.machine import Machine
from dcir.cost.target import Target, target_of
from dcir.driver.measure.machine import rates, refuse_if_busy, share_of_others
from dcir.driver.measure.tune_bench import BenchedKernel, Buffers, Trial
from dcir.errors import CompilerFailed, MachineBusy
from dcir.identity import source_identity
from dcir.ir.memory_plan import PREPARED
from dcir.ir.network import Network
from dcir.report.tuning import Tuning, TuningRow

_AT_ONCE = 8  # choices that are compiled and timed together
_FINALISTS = 3
_LEAST_GAIN = 0.01
_LOOK_SECONDS = 0.5
_ROUNDS, _FINAL_ROUNDS = 5, 15
_SECONDS, _FINAL_SECONDS = 0.15, 0.5

Progress = Callable[[str, int, int], None]


@dataclass
class Tuner:
    """Tunes the graphs of one model within one budget.

    Attributes:
        budget: seconds for all graphs together.
        force: measure although other processes work.
        again: measure what the database has a verdict on, too.
        cache: of built files and of the database.
        tuning: what was found so far.
    """

    budget: float
    force: bool = False
    again: bool = False
    cache: Cache = field(default_factory=Cache.default)
    progress: Progress | None = None
    tuning: Tuning = field(default_factory=Tuning)

    def tune(self, net: Network, share: float = 1.0) -> None:
        """Measure the kernels of a rewritten network; what wins is in the database then.

        Args:
            net: the network.
            share: of what is left of the budget, for this network.

        Raises:
            MachineBusy: other processes work, and ``force`` is not set.
        """
        start = time.perf_counter()
        stop = start + (self.budget - self.tuning.took) * share
        target = target_of(net)
        emitters, machine = target.backend.emitters, target.machine
        threads = machine.threads
        database = Database(machine, emitters, source_identity(), self.cache)
        self.tuning.threads = threads
        found = [k for k in kernels(net, threads) if _varied(k, emitters, machine)]
        if not self.force and found:
            refuse_if_busy(share_of_others(threads, lambda: time.sleep(_LOOK_SECONDS)))
        parameters = _parameter_bytes(net)
        waiting = []
        for kernel in found:
            verdict = None if self.again else database.find(kernel.spec, kernel.types, kernel.team)
            if verdict is None:
                waiting.append(kernel)
            else:
                self.tuning.rows.append(_row(kernel, replace(verdict, tried=0)))
        for number, kernel in enumerate(_by_share(waiting)):
            if self.progress is not None:
                self.progress("tuning", number, len(waiting))
            if time.perf_counter() >= stop:
                self.tuning.left += len(waiting) - number
                break
            # Graphs are compiled while torch traces, when tensors have no memory.
            with unset_fake_temporarily():
                self._kernel(kernel, _TuneSearch(kernel, target, parameters, self.cache, stop), database)
        self.tuning.took += time.perf_counter() - start

    def _kernel(self, kernel: BenchedKernel, search: _TuneSearch, database: Database) -> None:
        verdicts: list[Verdict] = []
        others = share_of_others(kernel.team, lambda: verdicts.append(search.run()))
        note = search.note
        try:
            if not self.force:
                refuse_if_busy(others)
        except MachineBusy:
            note = "not kept: other processes worked meanwhile"
            verdicts[0] = replace(verdicts[0], choice=MODELS, seconds=verdicts[0].models)
        else:
            if search.finished:
                database.keep(kernel.spec, kernel.types, kernel.team, verdicts[0])
        self.tuning.rows.append(replace(_row(kernel, verdicts[0]), note=note))


class _TuneSearch:
    """The search for one kernel's best choice: one decision after the other, then the winners together.

    Attributes:
        note: what is worth telling besides the verdict.
        finished: whether there was time to compare the finalists.
    """

    def __init__(self, kernel: BenchedKernel, target: Target, parameters: int, cache: Cache, stop: float) -> None:
        self.kernel, self.target, self.cache, self.stop = kernel, target, cache, stop
        self.emitters: Emitters = target.backend.emitters
        self.buffers = Buffers(kernel, parameters, rates())
        self.gains: dict[Choice, float] = {}
        self.note, self.finished = "", False

    def run(self) -> Verdict:
        """The verdict; it is for the model's choice unless another one won by more than the spread, with right results."""
        spec = self.kernel.spec
        self._look(self.emitters.alternatives(spec, self.target.machine)[1:])
        start = MODELS
        # What is best in one decision is the start for all others, as long as that helps.
        while (better := self._best(start)) != start:
            fixed = frozenset(name for name, _ in better.values)
            combined = [better.having(*c.values[-1]) for c in self._promising() if not fixed & {n for n, _ in c.values}]
            fresh = [c for c in self._distinct(combined) if c not in self.gains]
            start = better
            self._look(fresh)
        finalists = sorted((c for c in self.gains if self.gains[c] > 0), key=lambda c: -self.gains[c])[:_FINALISTS]
        return self._final(finalists)

    def _best(self, start: Choice) -> Choice:
        return max((start, *self.gains), key=lambda c: self.gains.get(c, 0.0))

    def _promising(self) -> list[Choice]:
        """Choices of one decision that are not slower than the model's, the best first."""
        single = [c for c in self.gains if len(c.values) == 1 and self.gains[c] > -_LEAST_GAIN]
        return sorted(single, key=lambda c: -self.gains[c])

    def _distinct(self, choices: Sequence[Choice]) -> list[Choice]:
        """Each choice as far as it changes anything, and once."""
        return list(
            dict.fromkeys(
                self.emitters.decisions(self.kernel.spec, self.target.machine, c).effective() for c in choices
            )
        )

    def _look(self, choices: Sequence[Choice]) -> None:
        """A first impression of choices: their gain over the model's."""
        for some in _parts(choices, _AT_ONCE):
            if time.perf_counter() >= self.stop:
                return
            try:
                trial = Trial(self.buffers, [MODELS, *some, MODELS], self.target, self.cache)
            except CompilerFailed as error:
                self.note = str(error).partition("\n")[0]
                continue
            times = [_low(t) for t in trial.run(_SECONDS, _ROUNDS)]
            models = min(times[0], times[-1])
            for choice, t in zip(some, times[1:-1], strict=True):
                self.gains[choice] = models / t - 1

    def _final(self, finalists: Sequence[Choice]) -> Verdict:
        """The finalists next to two copies of the model's choice, long enough to tell them apart."""
        self.finished = not finalists or time.perf_counter() < self.stop + _FINAL_SECONDS
        trial = Trial(self.buffers, [MODELS, *finalists, MODELS], self.target, self.cache)
        columns = trial.run(_FINAL_SECONDS if finalists else _SECONDS, _FINAL_ROUNDS if finalists else _ROUNDS)
        times = [_low(t) for t in columns]
        models = min(times[0], times[-1])
        # What equal code differs by, and what its halves do, is no gain.
        spread = max(times[0], times[-1]) / models - 1
        tried = len(self.gains) + 1
        for number in sorted(range(1, len(times) - 1), key=lambda i: times[i]):
            halves = [_low(columns[number][i::2]) for i in (0, 1)]
            unsure = max(spread, _LEAST_GAIN, max(halves) / min(halves) - 1)
            if models / times[number] - 1 <= unsure:
                continue
            if not trial.right(number):
                self.note = f"{finalists[number - 1]} computes something else and is not used"
                continue
            return Verdict(
                finalists[number - 1], times[number], models, spread, tried, self._times(finalists, times, models)
            )
        return Verdict(MODELS, models, models, spread, tried, self._times(finalists, times, models))

    def _times(self, finalists: Sequence[Choice], times: Sequence[float], models: float) -> Times:
        """What the choices took: finalists as they were compared last, all others by their first impression."""
        known = {choice: models / (1 + gain) for choice, gain in self.gains.items()}
        known |= dict(zip(finalists, times[1:-1], strict=True)) | {MODELS: models}
        rows = sorted(known.items(), key=lambda row: row[1])
        own = next(i for i, (choice, _) in enumerate(rows) if choice == MODELS)
        return tuple(rows[:MOST_TIMES] if own < MOST_TIMES else [*rows[: MOST_TIMES - 1], rows[own]])


def kernels(net: Network, threads: int) -> list[BenchedKernel]:
    """The distinct kernels of generated code that run in every call, with what decides their time.

    Not those in loops and branches, nor those that a node asks a schedule of: what is measured there is the target's.
    """
    prepared = {op.label for op in net.prepared_ops()}
    written = {o.data for op in net.ops() for o in net.outs(op)}
    kept = net.static | set(net.constants) | net.memory.offsets(PREPARED).keys()
    found: dict[Any, BenchedKernel] = {}
    for run in invocations(net, threads):
        if run.label in prepared or run.calls_torch or run.spec.bodies() or run.schedule is not None:
            continue
        spec, ins, outs = run.spec, run.ins, run.outs
        boxes = [net.containers[o.data] for o in (*ins, *outs)]
        kernel = BenchedKernel(
            spec, *run.types, tuple(b.size for b in boxes), tuple(o.offset for o in (*ins, *outs)),
            tuple(o.data in kept or (o.data not in written and box.role == "input" and i == 1)
                  for i, (o, box) in enumerate(zip((*ins, *outs), boxes, strict=True))),
            net.streams[run.stream].images if run.stream >= 0 else 1, run.team,
        )  # fmt: skip
        key = (spec, kernel.types, kernel.team)
        found[key] = replace(found[key], calls=found[key].calls + kernel.calls) if key in found else kernel
    return list(found.values())


def _varied(kernel: BenchedKernel, emitters: Emitters, machine: Machine) -> bool:
    """Whether a kernel can be made in several ways, and checked."""
    if not all(kernel.sizes):
        return False
    return any(len(offered) > 1 for offered in emitters.decisions(kernel.spec, machine).offered.values())


def _by_share(waiting: Sequence[BenchedKernel]) -> list[BenchedKernel]:
    """Kernels by a bound of their share of the network's time, the largest first."""
    model = rates()

    def floor(k: BenchedKernel) -> float:
        reads, writes = k.spec.footprint()
        return k.calls * model.floor_seconds(k.spec.operations(), sum(reads) + sum(writes), threads=k.team)

    return sorted(waiting, key=floor, reverse=True)


def _parameter_bytes(net: Network) -> int:
    """Bytes of parameters, constants and what is made of them: what a call reads from memory rather than from a cache."""
    return net.memory.nbytes(PREPARED) + sum(
        c.nbytes for c in net.containers.values() if c.role in ("input", "constant")
    )


def _row(kernel: BenchedKernel, v: Verdict) -> TuningRow:
    return TuningRow(kernel.spec.describe(), kernel.calls, v.models, v.seconds, v.spread, v.tried, str(v.choice))


def _low(times: Sequence[float]) -> float:
    """A time that disturbances do not raise: the mean of the lowest fifth."""
    lowest = sorted(times)[: max(1, len(times) // 5)]
    return sum(lowest) / len(lowest)


def _parts(choices: Sequence[Choice], size: int) -> Iterator[Sequence[Choice]]:
    for i in range(0, len(choices), size):
        yield choices[i : i + size]
