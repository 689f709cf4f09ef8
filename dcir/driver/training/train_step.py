"""``dcir.train_step``: forward, loss, backward and the optimiser's update as one compiled program."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from dcir.driver.compile import compiling
from dcir.driver.handle import Handle
from dcir.driver.session import Session
from dcir.driver.training.batch import Alike, StepFrame, layout, shapes, split_batch
from dcir.driver.training.distributed import inside, is_sharded
from dcir.driver.training.optimisers import Family, family
from dcir.errors import InvalidInput, OptionError, Unsupported
from dcir.frontends.torch.admission import of_module, refuse_unless_plain
from dcir.frontends.torch.shapes.batch_sizes import BatchSizes, Pattern
from dcir.frontends.torch.shapes.moving_sizes import MovingSizes, NoProgramForSizes
from dcir.frontends.torch.training import CapturedStep, Clip, Update, capture_step
from dcir.ops.reach import out_of_reach
from dcir.options import Options


def train_step(
    model: nn.Module,
    loss_fn: Callable[..., Tensor],
    optimizer: torch.optim.Optimizer,
    *,
    clip_grad_norm: float | None = None,
    clip_grad_value: float | None = None,
    autocast: torch.dtype | None = None,
    level: int | str = 4,
    **options: Any,
) -> TrainStep:
    """Compile whole training steps of a model.

        step = dcir.train_step(model, nn.CrossEntropyLoss(), torch.optim.AdamW(model.parameters()))
        for x, y in loader:
            loss = step(x, y)

    A call computes ``loss_fn(model(*inputs), target)`` for ``step(*inputs, target)``, its gradients, and the optimiser's step, and
    writes the parameters, the buffers and the optimiser's state where they are. ``optimizer.state_dict()``, learning rate schedulers
    and checkpoints work as before. Gradients that ``backward()`` left in ``p.grad`` (of earlier batches: accumulation) are added, and are
    None afterwards. A step is compiled once per mode and options of the optimiser that do not change its numbers, for the first batch as
    it is, and again when a size of it changes: for all sizes if that can be had, else for each combination (``explain()`` says why).

    A batch may be nested (a tuple of targets, a dict). Every value of a plain number or string in it has a program of its own, so
    what changes from step to step belongs in a tensor.

    Args:
        model: trained in the mode (``train()`` or ``eval()``) it is in when called.
        loss_fn: from the model's result and the last member of the batch to a scalar.
        optimizer: torch.optim.SGD, Adam, AdamW or RMSprop over (some of) the model's parameters.
        clip_grad_norm, clip_grad_value: clip gradients as torch.nn.utils.clip_grad_norm_ and clip_grad_value_ do.
        autocast: ``torch.bfloat16`` runs forward and loss under autocast.
        level, options: as for ``dcir.optimize``.

    Raises:
        Unsupported: another optimiser, or one of its options has no compiled form; or the model is under DistributedDataParallel or
            ``fully_shard``, or has parameters on another device or of a class of their own.
        OptionError, InvalidInput: an argument cannot be.
    """
    if not isinstance(model, nn.Module):
        raise InvalidInput(f"train_step takes an nn.Module, not a {type(model).__name__}")
    if clip_grad_norm is not None and clip_grad_value is not None:
        raise OptionError(
            "gradients are clipped by norm or by value, not both", where="clip_grad_norm, clip_grad_value"
        )
    if autocast not in (None, torch.bfloat16):
        raise OptionError(f"no autocast to {autocast}", where="autocast", hint="torch.bfloat16")
    chosen = Options.make(level=level, **options)
    chosen.refuse_streams("a training step")
    if chosen.dynamic:
        raise OptionError(
            "which sizes of a batch change is found out by a training step",
            where=f"dynamic={options['dynamic']!r}",
            hint="leave it out, or dynamic=False for programs of constant sizes; dcir.optimize(model, dynamic=...) with a loop of your own",
        )
    return TrainStep(model, loss_fn, optimizer, Clip(clip_grad_norm, clip_grad_value), autocast, chosen)


def _refuse_model(model: nn.Module) -> None:
    """Refuse what other processes have a part in, and parameters that no program can be given.

    Raises:
        Unsupported: there is any.
    """
    spread = next((type(m).__name__ for m in model.modules() if inside(m) is not None), None)
    if spread is None and is_sharded(model):
        spread = "fully_shard"
    if spread is not None:
        raise Unsupported(
            f"a training step is compiled for one process, the model is under {spread}",
            where=type(model).__name__, hint="dcir.optimize(model), with the loss and the optimiser's step around it",
        )  # fmt: skip
    refuse_unless_plain(of_module(model))


@dataclass(frozen=True)
class _Seen:
    """A model at the beginning of a step.

    Attributes:
        tensors: its parameters and buffers by every name they have.
        names: id of each of them -> its first name.
        modes: of every module, whether it trains.
    """

    tensors: dict[str, Tensor]
    names: dict[int, str]
    modes: tuple[bool, ...]


def _seen(model: nn.Module) -> _Seen:
    """One walk over the modules, in the order of ``named_modules``: torch's own generators take 3 ms a step of 300 modules."""
    tensors: dict[str, Tensor] = {}
    names: dict[int, str] = {}
    modes = []
    left = [("", model)]
    while left:
        prefix, module = left.pop()
        modes.append(module.training)
        for n, p in module._parameters.items():
            if p is not None:
                tensors[prefix + n] = p
                names.setdefault(id(p), prefix + n)
        for n, b in module._buffers.items():
            if b is not None:
                tensors[prefix + n] = b
                names.setdefault(id(b), prefix + n)
        left += [(f"{prefix}{n}.", m) for n, m in reversed(module._modules.items()) if m is not None]
    return _Seen(tensors, names, tuple(modes))


@dataclass(frozen=True)
class _Held:
    """A parameter that the optimiser holds: its name in the model, itself, its group, and its row of hyperparameters."""

    name: str
    parameter: nn.Parameter
    group: dict[str, Any]
    row: tuple[int, int]


@dataclass(frozen=True)
class _Compiled:
    """A step and its program; ``sizes`` is what it asks of those of a batch, if they move."""

    step: CapturedStep
    program: Callable[[list[Any]], list[Any]]
    sizes: BatchSizes | None = None


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
        _refuse_model(model)
        self.model, self.loss_fn, self.optimizer = model, loss_fn, optimizer
        self.dcir = Handle(Session(options), type(model).__name__)
        self.grad_norm: Tensor | None = None
        self._clip, self._autocast = clip, autocast
        self._family: Family = family(optimizer)
        self._compiled: dict[Any, _Compiled] = {}
        self._idle: dict[Any, frozenset[str]] = {}
        self._alike: dict[Any, Alike] = {}
        self._lock = threading.Lock()

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
        tensors, frame = split_batch(batch)
        with self._lock:
            return self._step(tensors, frame)

    def _step(self, batch: Sequence[Tensor], frame: StepFrame) -> Tensor:
        seen = _seen(self.model)
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
            if h.parameter.grad is not None and (what := out_of_reach(h.parameter.grad)) is not None:
                raise Unsupported(
                    f"the gradient of {h.name} so far is {what}", where=h.name, hint="zero_grad() before the step"
                )
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
        states = [self._state(h)[name] for h, u in zip(updated, step.updated, strict=True) for name in u.state]
        own = [seen.tensors[n] for n in (*step.parameters, *step.buffers)]
        sums = [by_name[n].parameter.grad for n in step.accumulated]
        numbers = [v for i, t in rows for v in self._family.hyper(self.optimizer.param_groups[i], t + 1).values()]
        hyper = torch.tensor(numbers or [0.0], dtype=torch.float64)
        args = [*own, *batch, *sums, *states, hyper]
        results = found.program(args)
        written: list[Any] = [args[i] for i in step.context.updates.values()]
        self._after(updated, written)
        if self._clip.norm is not None:
            self.grad_norm = results[1]
        loss: Tensor = results[0]
        return loss

    def _known(self, call: Any, seen: _Seen) -> tuple[list[_Held], list[tuple[int, int]], Any]:
        """Parameters that get gradients, as far as is known; their distinct rows; the key of the program."""
        idle = self._idle.get(call, frozenset())
        held = []
        for i, group in enumerate(self.optimizer.param_groups):
            for p in group["params"]:
                name = seen.names.get(id(p))
                if name is not None and p.requires_grad and name not in idle:
                    held.append(_Held(name, p, group, (i, self._steps(p))))
        rows = sorted({h.row for h in held})
        number = {row: i for i, row in enumerate(rows)}
        return held, rows, (call, tuple((h.name, number[h.row], h.parameter.grad is not None) for h in held))

    def _steps(self, p: nn.Parameter) -> int:
        """Steps that the optimiser has made with a parameter; without a counter, whether it has made any."""
        state = self.optimizer.state.get(p, {})
        if self._family.counts:
            return int(state["step"]) if "step" in state else 0
        return int(any(isinstance(v, Tensor) for v in state.values()))

    def _kind(self, batch: Sequence[Tensor], seen: _Seen) -> Any:
        """Everything but numbers and sizes that the program of a call depends on, save what the optimiser holds."""
        types = tuple((t.ndim, t.dtype) for t in batch)
        # With the first name of each: a program takes a tensor of two names once.
        tensors = tuple(
            (n, seen.names[id(t)], t.shape, t.stride(), t.dtype, t.requires_grad) for n, t in seen.tensors.items()
        )
        flags = tuple(
            tuple((k, v) for k, v in g.items() if isinstance(v, bool)) + tuple(map(bool, (
                g.get("momentum", 0), g.get("weight_decay", 0)
            ))) for g in self.optimizer.param_groups
        )  # fmt: skip
        return types, seen.modes, tensors, flags

    def _compile(
        self, batch: Sequence[Tensor], frame: StepFrame, held: list[_Held], rows: list[tuple[int, int]],
        accumulated: tuple[str, ...], sizes: BatchSizes | None, remark: str,
    ) -> _Compiled:  # fmt: skip
        _refuse_model(self.model)  # it may have changed
        make = self._family
        first, at = {}, 0
        for row in rows:
            first[row] = at
            at += len(make.hyper(self.optimizer.param_groups[row[0]], 1))
        updates = [
            Update(
                h.name, make.rule(h.group), make.state(h.group), first[h.row],
                tuple(make.hyper(h.group, 1)),
            ) for h in held
        ]  # fmt: skip

        def loss(model: nn.Module, *tensors: Tensor) -> Tensor:
            *inputs, target = frame.filled(tensors)
            return self.loss_fn(model(*inputs), target)

        step = capture_step(
            self.model, loss, batch if sizes is None else sizes.examples, updates, at, clip=self._clip,
            autocast=self._autocast, accumulated=accumulated,
        )  # fmt: skip
        compile_graph = compiling(self.dcir.session)
        if sizes is None:
            return _Compiled(step, compile_graph(step.graph, replace(step.context, remark=remark)).call)
        context = replace(step.context, conditions=sizes.conditions)
        return _Compiled(step, MovingSizes(step.graph, context, compile_graph, sizes.names), sizes)

    def _state(self, h: _Held) -> dict[str, Tensor]:
        """The optimiser's state of a parameter, made as torch makes it."""
        state = self.optimizer.state[h.parameter]
        if self._family.counts and "step" not in state:
            state["step"] = torch.tensor(0.0, dtype=torch.get_default_dtype())
        for name in self._family.state(h.group):
            if not isinstance(state.get(name), Tensor):
                state[name] = torch.zeros_like(h.parameter, memory_format=torch.preserve_format)
        result: dict[str, Tensor] = state
        return result

    def _after(self, updated: list[_Held], written: Sequence[Tensor]) -> None:
        """What torch's own step would have left behind besides the numbers."""
        if self._family.counts:
            torch._foreach_add_([self.optimizer.state[h.parameter]["step"] for h in updated], 1)
        for h in updated:
            h.parameter.grad = None
        # The program wrote to them behind autograd's back.
        torch.autograd.graph.increment_version(written)
        # Schedulers warn where they see no step.
        self.optimizer._opt_called = True  # type: ignore[attr-defined]
