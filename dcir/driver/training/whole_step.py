"""A training step of one process: forward, loss, backward and the optimiser's update as one compiled program."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.parameter import is_lazy

from dcir.driver.compile import compiling
from dcir.driver.handle import Handle
from dcir.driver.kept.graph_keeper import GraphsKeeper
from dcir.driver.session import Session
from dcir.driver.training.batch import Alike, StepFrame, layout, refuse_written, shapes, split_batch
from dcir.driver.training.code_reads import CodeReads
from dcir.driver.training.distributed import spread_by
from dcir.driver.training.module_state import function_state, global_hooks, module_state
from dcir.driver.training.optimiser_steps import Held, OptimiserSteps, Row, laid_as, rows_of
from dcir.driver.training.shared_memory import Apart
from dcir.errors import Unsupported
from dcir.frontends.torch.admission import of_module, refuse_unless_plain
from dcir.frontends.torch.context import GraphContext
from dcir.frontends.torch.gpu_forms import in_gpu_forms
from dcir.frontends.torch.kept.graph_text import step_text
from dcir.frontends.torch.kept.graphs import StepNotes
from dcir.frontends.torch.shapes.batch_sizes import BatchSizes, Pattern
from dcir.frontends.torch.shapes.conditions import branches
from dcir.frontends.torch.shapes.moving_sizes import MovingSizes
from dcir.frontends.torch.shapes.programs import NoProgramForSizes
from dcir.frontends.torch.training import OF_LOSS, CapturedStep, Clip, capture_step
from dcir.ops.reach import device, on_device, out_of_reach
from dcir.options import Options
from dcir.targets import target_class

HINT = "dcir.optimize(model), with the loss and the optimiser's step around it"
"""What to try where a step cannot be one."""


Program = Callable[[list[Any]], list[Any]]


@dataclass(frozen=True)
class _Seen:
    """A model at the beginning of a step.

    Attributes:
        tensors: its parameters and buffers by every name they have, and those of the loss function.
        names: id of each of them -> its first name.
        states: of every module, and of the loss function's, what a trace depends on besides them.
    """

    tensors: dict[str, Tensor]
    names: dict[int, str]
    states: tuple[Any, ...]


def _seen(model: nn.Module, loss_fn: Callable[..., Tensor], reads: CodeReads) -> _Seen:
    """One walk over the modules, in the order of ``named_modules``: torch's own generators take 3 ms a step of 300 modules."""
    tensors: dict[str, Tensor] = {}
    names: dict[int, str] = {}
    records: dict[int, Any] = {}
    states = [global_hooks(), function_state(loss_fn, records, reads)]
    left: list[tuple[str, nn.Module]] = [("", model)]
    if isinstance(loss_fn, nn.Module):
        left.insert(0, (OF_LOSS, loss_fn))
    while left:
        prefix, module = left.pop()
        states.append(module_state(module, records, reads))
        for n, p in module._parameters.items():
            if p is not None:
                tensors[prefix + n] = p
                names.setdefault(id(p), prefix + n)
        for n, b in module._buffers.items():
            if b is not None:
                tensors[prefix + n] = b
                names.setdefault(id(b), prefix + n)
        left += [(f"{prefix}{n}.", m) for n, m in reversed(module._modules.items()) if m is not None]
    return _Seen(tensors, names, tuple(states))


@dataclass(frozen=True)
class _Compiled:
    """A step and its program; ``sizes`` is what it asks of those of a batch, if they move, ``apart`` knows where its tensors lie."""

    step: CapturedStep
    program: Program
    sizes: BatchSizes | None = None
    apart: Apart = field(default_factory=Apart)

    @functools.cached_property
    def written(self) -> frozenset[int]:
        """Numbers of those of ``names`` that are written."""
        own = len(self.step.parameters) + len(self.step.buffers)
        batch = len(self.step.graph.graph.find_nodes(op="placeholder")) - 1 - len(self.names())
        return frozenset(i if i < own else i - batch for i in self.step.context.updates.values())

    def names(self) -> list[str]:
        """Of the model's and the optimiser's tensors, in the order of its arguments."""
        gradients = [f"gradient of {n}" for n in self.step.accumulated]
        states = [f"{s} of {u.name}" for u in self.step.updated for s in u.state]
        return [*self.step.parameters, *self.step.buffers, *gradients, *states]


class TrainStep:
    """A compiled training step; see ``train_step``.

    Attributes:
        dcir: options and records, as of an optimised module.
        grad_norm: with ``clip_grad_norm``, the norm of the last step's gradients before clipping.
    """

    def __init__(
        self, model: nn.Module, loss_fn: Callable[..., Tensor], optimizer: torch.optim.Optimizer, clip: Clip,
        autocast: torch.dtype | None, options: Options,
    ) -> None:  # fmt: skip
        self._device = device()
        self.model, self.loss_fn, self.optimizer = model, loss_fn, optimizer
        self._refuse(model)
        self.dcir = Handle(Session(options), type(model).__name__)
        self._keeper = GraphsKeeper(self.dcir.session, at_once=True)
        self.grad_norm: Tensor | None = None
        self._clip, self._autocast = clip, autocast
        self._steps = OptimiserSteps(optimizer)
        self._compiled: dict[Any, _Compiled] = {}
        self._idle: dict[Any, frozenset[str]] = {}
        self._alike: dict[Any, Alike] = {}
        self._reads = CodeReads()
        self._lock = threading.Lock()

    def _refuse(self, model: nn.Module) -> None:
        """Refuse what other processes have a part in, and parameters that no program can be given.

        Raises:
            Unsupported: there is any.
        """
        if (spread := spread_by(model)) is not None:
            raise Unsupported(
                f"a training step is compiled for one process, the model is under {spread}",
                where=type(model).__name__, hint=HINT if spread == "fully_shard" else f"{spread} around the whole model, or {HINT}",
            )  # fmt: skip
        for m in (model, self.loss_fn):
            if isinstance(m, nn.Module):
                refuse_unless_plain(of_module(m))

    def __call__(self, *batch: Any) -> Tensor:
        """One step.

        Args:
            batch: the model's inputs, and the target last; tensors, or lists, tuples and dicts of them.

        Returns:
            The loss (a scalar without a graph).

        Raises:
            InvalidInput: something in the batch is on another device, is part of an autograd graph, or is neither a tensor nor a
                plain value (a number, a string, None).
            Unsupported: the step cannot be captured as one graph.
        """
        if self._device == "cpu":
            return self._on_device(batch)
        with on_device(self._device):
            return self._on_device(batch)

    def _on_device(self, batch: tuple[Any, ...]) -> Tensor:
        tensors, frame = split_batch(batch)
        with self._lock:
            return self._step(tensors, frame)

    def _step(self, batch: Sequence[Tensor], frame: StepFrame) -> Tensor:
        self._refuse_autocast()
        seen = _seen(self.model, self.loss_fn, self._reads)
        if not self._compiled:
            _refuse_unmade(seen.tensors)
        kind = frame, self._kind(batch, seen)
        alike = self._alike.get(kind) or self._alike.setdefault(kind, Alike(batch))
        reason = ""
        if alike.may_move(batch) and self.dcir.session.options.dynamic is not False:
            rows = alike.pattern.rows
            try:
                if rows not in alike.refused:
                    return self._run((kind, rows), batch, frame, seen, alike.pattern)
                reason = alike.refused[rows]
            except NoProgramForSizes as e:
                reason = str(e)
            except Unsupported as e:
                reason = alike.refused[rows] = e.message
        lies = layout(batch)
        alike.own.add(lies)
        remark = f"each combination is compiled for itself: {reason}" if reason else ""
        return self._run((kind, lies), batch, frame, seen, remark=remark)

    def _refuse_autocast(self) -> None:
        if torch.is_autocast_enabled(self._device) and torch.get_autocast_dtype(self._device) != self._autocast:
            raise Unsupported(
                "a step has its own autocast, one around it has no effect", where="torch.autocast",
                hint="train_step(..., autocast=torch.bfloat16), and no autocast around its calls",
            )  # fmt: skip

    def _run(
        self, call: Any, batch: Sequence[Tensor], frame: StepFrame, seen: _Seen, pattern: Pattern | None = None,
        remark: str = "",
    ) -> Tensor:  # fmt: skip
        """A step with the program for a kind of call.

        Args:
            call: what the program belongs to, but for what the optimiser holds.
            pattern: which sizes move; none does if there is no pattern.
            remark: how a program comes to be compiled.

        Raises:
            NoProgramForSizes: the program for all sizes is not for these; nothing has been done.
        """
        held, rows, key = self._known(call, seen)
        for h in held:
            _refuse_hooks_of(h)
            if h.parameter.grad is not None and (what := out_of_reach(h.parameter.grad)) is not None:
                raise Unsupported(
                    f"the gradient of {h.name} so far is {what}", where=h.name, hint="zero_grad() before the step"
                )
            laid_as(h.parameter)
        found = self._compiled.get(key)
        if found is None:
            sizes = None if pattern is None else BatchSizes(batch, pattern)
            accumulated = tuple(h.name for h in held if h.parameter.grad is not None)
            found = self._compile(batch, frame, held, rows, accumulated, sizes, remark)
            # What gets no gradient makes no steps: left in, it would soon be the only one that has made none.
            unused = {h.name for h in held} - {u.name for u in found.step.updated}
            self._idle[call] = self._idle.get(call, frozenset()) | unused
            before = rows
            held, rows, key = self._known(call, seen)
            if rows != before:  # some rows were for unused parameters alone
                found = self._compile(batch, frame, held, rows, accumulated, sizes, remark)
            self._compiled[key] = found
        if found.sizes is not None and not found.sizes.hold(shapes(batch)):
            raise NoProgramForSizes("the trace for all sizes takes some for equal that are not in this batch")
        step = found.step
        by_name = {h.name: h for h in held}
        updated = [by_name[u.name] for u in step.updated]
        states = [s for h in updated for s in self._steps.states(h)]
        own = [seen.tensors[n] for n in (*step.parameters, *step.buffers)]
        sums = [g for n in step.accumulated if (g := by_name[n].parameter.grad) is not None]
        refuse_written(batch, [own[i] for i in step.context.updates.values() if i < len(own)])
        args = [*own, *batch, *sums, *states, self._steps.numbers(rows)]
        try:
            found.apart.refuse_shared([*own, *sums, *states], found.written, found.names)
            results = found.program(args)
        except BaseException:
            self._steps.undone(updated)
            raise
        written: list[Any] = [args[i] for i in step.context.updates.values()]
        self._steps.done(updated, written)
        if self._clip.norm is not None:
            self.grad_norm = results[1]
        loss: Tensor = results[0]
        return loss

    def _known(self, call: Any, seen: _Seen) -> tuple[list[Held], list[Row], Any]:
        """Parameters that get gradients, as far as is known; their distinct rows; the key of the program."""
        held = self._steps.held(seen.names, self._idle.get(call, frozenset()))
        rows = rows_of(held)
        number = {row: i for i, row in enumerate(rows)}
        return held, rows, (call, tuple((h.name, number[h.row], h.parameter.grad is not None) for h in held))

    def _kind(self, batch: Sequence[Tensor], seen: _Seen) -> Any:
        """Everything but numbers and sizes that the program of a call depends on, save what the optimiser holds."""
        types = tuple((t.ndim, t.dtype) for t in batch)
        # With the first name of each: a program takes a tensor of two names once.
        tensors = tuple(
            (n, seen.names[id(t)], t.shape, t.stride(), t.dtype, t.requires_grad) for n, t in seen.tensors.items()
        )
        defaults = torch.get_default_dtype(), torch.get_default_device()  # of tensors that the code makes
        return types, seen.states, tensors, self._steps.flags(), defaults

    def _compile(
        self, batch: Sequence[Tensor], frame: StepFrame, held: list[Held], rows: list[Row],
        accumulated: tuple[str, ...], sizes: BatchSizes | None, remark: str,
    ) -> _Compiled:  # fmt: skip
        self._refuse(self.model)  # it may have changed
        updates, hyper = self._steps.updates(held, rows)

        def batch_of(tensors: Sequence[Tensor]) -> tuple[Sequence[Any], Any]:
            *inputs, target = frame.filled(tensors)
            return inputs, target

        with in_gpu_forms(wanted=not target_class(self.dcir.options.target).attends):
            step = capture_step(
                self.model, self.loss_fn, batch if sizes is None else sizes.examples, updates, hyper, batch_of=batch_of,
                clip=self._clip, autocast=self._autocast, accumulated=accumulated,
            )  # fmt: skip
        if sizes is None:
            return _Compiled(step, self._program(step.graph, replace(step.context, remark=remark)))
        context = replace(step.context, conditions=(*sizes.conditions, *branches(step.graph)))
        return _Compiled(step, self._programs(step.graph, context, sizes.names), sizes)

    def _program(self, graph: fx.GraphModule, context: GraphContext) -> Program:
        """What runs a step of constant sizes, which an earlier process may have compiled."""
        address = self._keeper.address(lambda: (repr(context), *step_text(graph)))
        found = [] if address is None else self._keeper.found(address)
        if found:
            return found[0].whole
        made = compiling(self.dcir.session)(graph, context).call
        if address is not None:
            self._keeper.made(address, StepNotes(made))
        return made

    def _programs(self, graph: fx.GraphModule, context: GraphContext, names: Mapping[str, str]) -> MovingSizes:
        """What runs a step of any sizes, with the programs that earlier processes have compiled."""
        address = self._keeper.address(lambda: (repr(context), repr(names), *step_text(graph)))
        sizes = MovingSizes(graph, context, compiling(self.dcir.session), names)
        if address is not None:
            for kept, _ in self._keeper.found(address):
                known = [span for span, _ in sizes.made]
                sizes.made += [(span, call) for span, call in kept.sizes.made if span not in known]
            self._keeper.made(address, StepNotes(sizes, known=len(sizes.made)))
        return sizes


def _refuse_unmade(tensors: Mapping[str, Tensor]) -> None:
    """Refuse parameters that a lazy layer makes in its first call: a step is compiled for parameters that are there.

    Raises:
        Unsupported: there are any.
    """
    unmade = [n for n, t in tensors.items() if is_lazy(t)]
    if unmade:
        raise Unsupported(
            "a training step is compiled for parameters that are there, and lazy layers make theirs in the first call of the model",
            where=", ".join(unmade), hint="call the model once, under torch.no_grad(), before the first step",
        )  # fmt: skip


def _refuse_hooks_of(h: Held) -> None:
    """Refuse hooks on a parameter, which a compiled step would not call.

    Raises:
        Unsupported: there are any.
    """
    if h.parameter._backward_hooks or h.parameter._post_accumulate_grad_hooks:
        raise Unsupported(
            "a compiled step has no gradients to show to a parameter's hooks", where=h.name,
            hint="remove them, or " + HINT,
        )  # fmt: skip
