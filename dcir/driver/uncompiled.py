"""What of a call ran uncompiled, why and what to try: told once, kept for ``explain``, and an error under ``strict``.

TorchDynamo leaves code to Python where it cannot trace it: at a graph break, or whole frames that it skips. It notes both, for its
own logs; here the notes of one call are read after it. Whether anything compiled ran at all is counted by the programs.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._dynamo import config, exc
from torch._dynamo.eval_frame import dynamo_tls
from torch._dynamo.output_graph import graph_break_reasons  # type: ignore[attr-defined]  # imported there, too

from dcir.errors import NotCompiledWarning, Unsupported
from dcir.frontends.torch.capture import break_text
from dcir.frontends.torch.layer_shapes import shapes_from_one_step
from dcir.frontends.torch.packed_calls import CUT, packed_forms
from dcir.frontends.torch.tape import programs_run
from dcir.user_code import warn_user

_NOTHING = "No ops traced"
_NO_FRAMES = "found no compiled frames"
_TRANSFORM = (
    "it is inside a transform of torch.func ({}), which Dynamo compiles only where it traces the transform itself"
)
_HINTS_OF_NO_USE = (
    "Please report",
    "This graph break is fundamental",
    "It may be possible to write Dynamo tracing rules",
)
_DISABLED_FOR = re.compile(r"wrapped with `torch\.compiler\.disable` \(reason: (?!None\))(.*)\)")
"""Who disables with a reason knows best what it is for."""
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_STRICT = "strict=False runs it in PyTorch"


@dataclass(frozen=True)
class Uncompiled:
    """One thing that ran in PyTorch.

    Attributes:
        reason, place, cure: why, where in the user's program, what to try.
        whole: whether nothing of the call was compiled.
    """

    reason: str
    place: str
    cure: str
    whole: bool

    def __str__(self) -> str:
        what = "nothing of this call is compiled" if self.whole else "a part of this call is not compiled"
        return f"{what}: {self.reason}{f' {self.place}' * bool(self.place)}{f'; try: {self.cure}' * bool(self.cure)}"


class Coverage:
    """Watches the calls of one optimised callable.

    Attributes:
        calls: how many there were through Dynamo.
        found: what ran uncompiled in them.
        breaks: (reason, place) of Dynamo's graph breaks.
        recurrent: whether Dynamo shall trace recurrent layers, which it leaves out unless told otherwise.

    Args:
        strict: whether what is not compiled is an error.
    """

    def __init__(self, *, strict: bool) -> None:
        self._strict = strict
        self.recurrent = True
        self.calls = 0
        self.found: list[Uncompiled] = []
        self.breaks: list[tuple[str, str]] = []
        self._computes_nothing = self._left = False

    @contextlib.contextmanager
    def call(self, name: str) -> Iterator[None]:
        """Around a call through Dynamo, which compiles the frame of that name.

        Raises:
            Unsupported: something is not compiled, and that is an error.
        """
        self.calls += 1
        transform = _transform()
        if transform and self._strict:
            raise self._refused(self._outside(transform))
        # Dynamo appends to the list that is there.
        skipped: list[str] = []
        before, dynamo_tls.skip_reasons = getattr(dynamo_tls, "skip_reasons", None), skipped
        first, ran = len(graph_break_reasons), programs_run()
        allowed = config.allow_rnn
        if self.recurrent and not allowed:
            config.allow_rnn = True
        try:
            with contextlib.ExitStack() as stack:
                if self.recurrent:
                    stack.enter_context(shapes_from_one_step())
                    stack.enter_context(packed_forms())
                yield
        except (exc.Unsupported, exc.UserError, exc.FailOnRecompileLimitHit) as error:
            if not self._strict:
                raise
            raise self._refused(_of_text(str(error), _place(getattr(error, "real_stack", None)), whole=False)) from None
        except RuntimeError as error:
            own = [line.strip(" -") for line in str(error).splitlines() if line.strip().startswith(f"- {name} (")]
            if not self._strict or _NO_FRAMES not in str(error) or not own:
                raise
            raise self._refused(_of_skip(own[0])) from None
        finally:
            dynamo_tls.skip_reasons = before
            if config.allow_rnn != allowed:
                config.allow_rnn = allowed
        nothing = programs_run() == ran
        if nothing or len(graph_break_reasons) > first:
            own = [reason for reason in skipped if reason.startswith(f"{name} (")]
            broken = [b for b in graph_break_reasons[first:] if CUT not in str(b.reason)]
            self._look(broken, own, transform, nothing=nothing)

    def tell(self, uncompiled: Uncompiled) -> None:
        """Warn of something that runs in PyTorch, once.

        Raises:
            Unsupported: that is an error.
        """
        if self._strict:
            raise self._refused(uncompiled)
        if uncompiled not in self.found:
            self.found.append(uncompiled)
            warn_user(str(uncompiled), NotCompiledWarning)

    def leave(self, reason: str, cure: str = "a plain tensor on the CPU") -> None:
        """Say that a graph, or a part of it, is left to PyTorch, for what it is given or gives.

        Raises:
            Unsupported: that is an error.
        """
        self._left = True
        self.tell(Uncompiled(f"{reason}, which compiled code cannot read", "", cure, whole=False))

    def _look(self, breaks: Sequence[Any], own: Sequence[str], transform: str, *, nothing: bool) -> None:
        self._computes_nothing |= any(_NOTHING in reason for reason in own)
        found = [_of_text(*break_text(b), whole=nothing, full=str(b.reason)) for b in breaks]
        if nothing and transform:
            found = [self._outside(transform)]
        elif nothing and not found:
            found = [_of_skip(reason) for reason in own if _NOTHING not in reason]
            known = self._computes_nothing or self._left or any(u.whole for u in self.found)
            if not found and not own and not known:
                found = [Uncompiled("Dynamo did not trace it", "", "torch.compiler.set_stance('default')", whole=True)]
        told = set()
        for uncompiled in found:
            # A branch on data is noted twice, once where it was traced and once where its graph ended.
            if uncompiled.place in told:
                continue
            told |= {uncompiled.place} - {""}
            at = uncompiled.reason, uncompiled.place
            if breaks and at not in self.breaks:
                self.breaks.append(at)
            self.tell(uncompiled)

    def _outside(self, transform: str) -> Uncompiled:
        cure = f"dcir.optimize a function that calls torch.func.{transform} itself"
        return Uncompiled(_TRANSFORM.format(transform), "", cure, whole=True)

    def _refused(self, uncompiled: Uncompiled) -> Unsupported:
        what = "the call" if uncompiled.whole else "a part of the call"
        return Unsupported(
            f"{what} cannot be compiled: {uncompiled.reason}",
            where=uncompiled.place or None,
            hint=f"{uncompiled.cure}; or {_STRICT}" if uncompiled.cure else _STRICT,
        )


def has_recurrent_layers(model: Any) -> bool:
    """Whether a module has layers that Dynamo traces only when told to; of functions nobody knows."""
    return not isinstance(model, nn.Module) or any(isinstance(m, nn.RNNBase) for m in model.modules())


def _transform() -> str:
    """The innermost transform of torch.func that is open, or an empty text."""
    functorch: Any = torch._C._functorch
    level = functorch.peek_interpreter_stack()
    return "" if level is None else str(level.key()).rpartition(".")[2].lower()


def _of_text(reason: str, place: str, *, whole: bool, full: str = "") -> Uncompiled:
    """From Dynamo's text with its hints."""
    text = full or reason
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not full:
        explanations = [line.partition(":")[2].strip() for line in lines if line.startswith("Explanation:")]
        reason = explanations[0] if explanations else lines[0]
    disabled = _DISABLED_FOR.search(reason)
    if disabled is not None:
        return Uncompiled(disabled[1], place, "", whole)
    hints = [line.partition(":")[2].strip() for line in lines if line.startswith("Hint:")]
    cures = [hint for hint in hints if not hint.startswith(_HINTS_OF_NO_USE)]
    return Uncompiled(_ADDRESS.sub("", reason), place, cures[0].rstrip(".") if cures else "", whole)


def _of_skip(text: str) -> Uncompiled:
    """From Dynamo's note that it skipped a frame: "name (file:line): reason"."""
    reason = text.partition("): ")[2].partition("\n")[0]
    cure = "TORCH_LOGS=dynamo tells more"
    if "dispatch mode" in reason:
        cure = "leave the mode before the call"
    elif "disabled" in reason:
        cure = "unset TORCHDYNAMO_DISABLE"
    return Uncompiled(reason, "", cure, whole=True)


def _place(stack: Any) -> str:
    return break_text(type("Ended", (), {"reason": "", "user_stack": stack}))[1] if stack else ""
