"""``dcir.optimize``: a module, function or exported program that runs compiled, and answers questions about it."""

from __future__ import annotations

import copy
import functools
import inspect
import itertools
import weakref
from collections.abc import Callable
from dataclasses import replace
from types import FunctionType
from typing import Any, cast

import torch
from torch import nn
from torch._C._dynamo.eval_frame import reset_code
from torch._dynamo.exc import BackendCompilerFailed, InternalTorchDynamoError, TorchRuntimeError, Unsupported
from torch._dynamo.utils import counters
from torch.compiler import is_compiling, is_dynamo_compiling
from torch.nn.modules.module import _has_any_global_hook

from dcir.driver.calls.dynamic_calls import DynamicCalls
from dcir.driver.calls.fast_path import MISS, QuickCalls
from dcir.driver.calls.gc_pause import seldom_collected
from dcir.driver.calls.lazy_modules import initialised_first
from dcir.driver.calls.submissions import Submissions, as_a_stream, with_streams
from dcir.driver.compile import compiling
from dcir.driver.handle import Handle
from dcir.driver.kept.graph_keeper import GraphsKeeper
from dcir.driver.kept.keeper import TraceKeeper
from dcir.driver.limit import limited
from dcir.driver.session import Session
from dcir.driver.targets.of_device import reading_device, tensors_of, with_target
from dcir.driver.training.distributed import inside, members_over, put_inside, share_state
from dcir.driver.training.optimiser_choice import prefer_fused
from dcir.driver.uncompiled import Uncompiled, has_recurrent_layers
from dcir.dynamic import DynamicDim, DynamicInputs
from dcir.errors import DcirError, InvalidInput
from dcir.frontends.torch.admission import named_refusals
from dcir.frontends.torch.capture import dynamo_backend
from dcir.frontends.torch.guards.code_seen import CodeSeen
from dcir.frontends.torch.guards.quick import QuickGuards
from dcir.frontends.torch.kept.frames import keeps_traces
from dcir.frontends.torch.lifetime import BorrowedBackend, drop_code_with, drop_compiled_with
from dcir.frontends.torch.shapes.all_sizes import AllSizes
from dcir.frontends.torch.shapes.size_one import OneAmongSizes
from dcir.frontends.torch.whole_graphs import keeps_graphs_whole
from dcir.options import Options
from dcir.targets import target_class

# Shapes and modes of one module that are compiled separately; Dynamo's own limit of 8 is soon reached.
_RECOMPILE_LIMIT = 64
_FRAMES = itertools.count()
_HOOKED = Uncompiled(
    "a hook for all modules (torch.nn.modules.module.register_module_...) is there", "",
    "remove it, or register it on the modules that need it", whole=True,
)  # fmt: skip


class _Optimized:
    """Mixed into the class of an optimised module; keeps copies and pickles optimised.

    What such a module has for itself is in slots: its dictionary is that of the module that was optimised. (Its class may not reach it:
    Dynamo's guards hold the class, out of the collector's sight.)
    """

    __slots__ = ("_dcir_call", "_dcir_inside", "_dcir_user", "dcir")

    dcir: Handle
    _dcir_call: Callable[..., Any] | None
    _dcir_inside: nn.Module
    _dcir_user: weakref.ref[nn.Module]

    def __init_subclass__(cls, **named: Any) -> None:
        """What the user's hook does for subclasses, it does for those that users write: one that is made here is none of theirs."""
        if cls.__bases__[0] is not _Optimized:
            super().__init_subclass__(**named)

    @property
    def _compiled_call_impl(self) -> Callable[..., Any] | None:
        """What ``nn.Module.__call__`` runs; a property, as the user's module may have one in the dictionary."""
        return self._dcir_call

    @_compiled_call_impl.setter
    def _compiled_call_impl(self, call: Callable[..., Any] | None) -> None:
        self._dcir_call = call

    def __copy__(self) -> Any:
        return _optimized_module(copy.copy(_users(self)), Session(self.dcir.options))

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return _optimized_module(copy.deepcopy(_users(self), memo), Session(self.dcir.options))

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _restore, (_users(self), self.dcir.options)


def _restore(module: nn.Module, options: Options) -> nn.Module:
    return _optimized_module(module, Session(options))


def _plain(module: Any) -> nn.Module:
    """The user's module again, sharing everything."""
    twin = _twin(module, _plain_class(type(module)))
    inner: Any = inside(twin)
    if isinstance(inner, _Optimized):
        put_inside(twin, _plain(inner))
    return twin


def _users(module: Any) -> nn.Module:
    """The user's module itself while it lives, as its children may refer to it; else another one like it."""
    user = module._dcir_user()
    same = user is not None and user.__dict__ is module.__dict__ and type(user) is _plain_class(type(module))
    return user if same and inside(user) is None else _plain(module)


def _twin(module: nn.Module, cls: Any) -> nn.Module:
    """Another object of a class over a module's one dictionary: what is set on either, or learnt by it, is set on both."""
    # Not by its own __new__: that of fully_shard makes an object of the class that was sharded, and hands its arguments on to that.
    twin: nn.Module = object.__new__(cls)
    object.__setattr__(twin, "__dict__", module.__dict__)
    share_state(twin, module)
    return twin


def _plain_class(cls: Any) -> Any:
    """The class that was optimised; ``fully_shard`` may have made one of the optimised class and its own."""
    at = cls.__mro__.index(_Optimized)
    if at == 1:
        return cls.__mro__[2]
    ours, user = cls.__mro__[at - 1 : at + 2 : 2]
    bases = tuple(user if base is ours else base for base in cls.__bases__)
    return type(cls.__name__, bases, {"__module__": cls.__module__, "__doc__": cls.__doc__})


def optimize(model: Any, /, *, level: int | str = 4, **options: Any) -> Any:
    """Compile a module, a function, or an exported program.

    Args:
        model: an ``nn.Module`` (the result is a module of a subclass of its class over the same dictionary: parameters, buffers,
            submodules, hooks, modes and attributes are those of both), a function over tensors, or a
            ``torch.export.ExportedProgram``.
        level: 0 to 4, how many tiers of passes run.
        options: see ``dcir.options.Options``. With ``hint="throughput"`` or ``streams=N`` calls run at once that are handed to
            ``.dcir.submit`` or ``.dcir.map`` of the result, each by a team of its own.

    Returns:
        Something to call like ``model``; compilation happens at the first call of every kind (shapes, modes).

    Raises:
        OptionError: an unknown option or value.
        InvalidInput: ``model`` is nothing that can be compiled, or its class can have no subclass made of it.
    """
    return compiled_with(model, Session(Options.make(level=level, **with_target(options, tensors_of(model)))))


def compiled_with(model: Any, session: Session) -> Any:
    """``optimize`` with a session of the caller's.

    Raises:
        InvalidInput: ``model`` is nothing that can be compiled.
    """
    if isinstance(model, torch.export.ExportedProgram):
        model = model.module()
    with_streams(session)
    if isinstance(model, nn.Module):
        return _optimized_module(model, session)
    if callable(model):
        return _optimized_function(model, session)
    raise InvalidInput(
        f"cannot optimise a {type(model).__name__}",
        hint="pass an nn.Module, a function, or a torch.export.ExportedProgram; load an ONNX file with dcir.load",
    )


def _optimized_module(module: nn.Module, session: Session) -> nn.Module:
    cls: Any = type(module)
    if isinstance(module, _Optimized):
        module = _plain(module)
        cls = type(module)
    # Of a subclass: code that asks isinstance(m, UserModule) goes on working.
    fast: Any = _twin(module, _optimized_class(cls))
    fast._dcir_call, fast._dcir_user = None, weakref.ref(module)
    # What is compiled and the handle reach this; a module that they held would be held by its own compiled frame, for ever.
    here = weakref.ref(fast)
    session.module = here
    frame = _frame_of_its_own(fast._call_impl)
    submissions = Submissions(session, cls.__name__, here, functools.partial(reset_code, frame.__code__))
    fast.dcir = Handle(session, type(module).__name__, functools.partial(_plain, fast), compiled_with, submissions)
    inner = inside(module)
    if inner is not None:
        # By a plain ``setattr`` it would be a child, too.
        object.__setattr__(fast, "_dcir_inside", _optimized_module(inner, session))
        return cast(nn.Module, fast)
    if session.options.fused_optimizers:
        prefer_fused(fast)
    calls = DynamicCalls(*_wishes(module, session.options), lambda: _modes(here()))
    session.coverage.recurrent = has_recurrent_layers(module)
    seen = CodeSeen()
    compiled = _compiled(frame, session, calls, seen)
    long_way = reading_device(named_refusals(compiled, here, calls.input_names), session)
    if target_class(session.options.target).shortens:
        call = _quick(long_way, QuickCalls(frame, fast._call_impl, seen, calls.check), fast._call_impl, session)
    else:
        call = _unless_hooked(long_way, fast._call_impl, session)
    fast._compiled_call_impl = initialised_first(as_a_stream(call, session), fast, module, _optimized_class, _plain)
    result: nn.Module = fast
    return result


def _optimized_class(cls: Any) -> Any:
    members = {"__module__": cls.__module__, "__doc__": cls.__doc__, **members_over(cls, "_dcir_inside")}
    try:
        return type(cls.__name__, (_Optimized, cls), members)
    except Exception as error:  # of __slots__, or whatever a metaclass raises
        raise InvalidInput(
            f"the class {cls.__qualname__} cannot have a subclass made for its optimised modules: {error}",
            where=f"{cls.__module__}.{cls.__qualname__}",
            hint="a class without __slots__ whose metaclass wants no arguments; or a function: dcir.optimize(lambda x: module(x))",
        ) from error


def _optimized_function(fn: Callable[..., Any], session: Session) -> Callable[..., Any]:
    calls = DynamicCalls(fn, session.options, lambda: None)
    if isinstance(fn, FunctionType):
        own = _with_code_of_its_own(fn)
        compiled = _compiled(own, session, calls, CodeSeen(), _Follower(fn, own))
    else:
        compiled = _compiled(fn, session, calls, CodeSeen())
    call = reading_device(named_refusals(compiled, lambda: None, calls.input_names), session)
    fast: Any = functools.wraps(fn)(as_a_stream(call, session))
    name = getattr(fn, "__name__", type(fn).__name__)
    # By the handle alone, too, it can be called; one that has no streams goes when nobody refers to it any more.
    submissions = Submissions(session, name, lambda: fast) if session.options.hint == "throughput" else None
    fast.dcir = Handle(session, name, lambda: fn, compiled_with, submissions)
    result: Callable[..., Any] = fast
    return result


def _frame_of_its_own(fn: Callable[..., Any]) -> FunctionType:
    """``fn`` called from a new code object.

    Dynamo skips frames that belong to torch, and the forward of a bare nn.Sequential is one. And it learns per name and
    line of a frame which sizes change from call to call, which must not mix modules.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    call.__code__ = call.__code__.replace(co_name=f"call_{next(_FRAMES)}")
    return cast(FunctionType, call)


def _with_code_of_its_own(fn: FunctionType) -> FunctionType:
    """``fn`` with a copy of its code: what Dynamo compiles for it goes when it goes, and ``fn`` may live on."""
    twin = FunctionType(fn.__code__.replace(), fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__)
    twin.__kwdefaults__ = fn.__kwdefaults__
    functools.update_wrapper(twin, fn).__dict__.pop("__wrapped__")
    if "__wrapped__" in fn.__dict__:
        twin.__dict__["__wrapped__"] = fn.__dict__["__wrapped__"]
    return twin


class _Follower:
    """Gives ``twin`` the code and the defaults that ``fn`` has been given since."""

    def __init__(self, fn: FunctionType, twin: FunctionType) -> None:
        self._fn, self._twin, self._code = fn, twin, fn.__code__

    def __call__(self) -> None:
        fn, twin = self._fn, self._twin
        if fn.__defaults__ is not twin.__defaults__:
            twin.__defaults__ = fn.__defaults__
        if fn.__kwdefaults__ is not twin.__kwdefaults__:
            twin.__kwdefaults__ = fn.__kwdefaults__
        if fn.__code__ is not self._code:
            self._code, old = fn.__code__, twin.__code__
            twin.__code__ = self._code.replace(co_name=old.co_name)
            reset_code(old)
            drop_code_with(twin)


def _quick(
    call: Callable[..., Any], quick: QuickCalls, plain: Callable[..., Any], session: Session
) -> Callable[..., Any]:
    """``call`` by the short way where there is one; a Dynamo that traces through this sees ``call`` alone.

    ``plain`` while there are hooks for all modules, on which Dynamo has no guards and not all of which it calls. They end the short way.
    """
    traced = _unless_hooked(call, plain, session)
    long_way = _unless_hooked(functools.partial(quick.long_way, call), plain, session)
    direct = quick.direct

    def run(*args: Any, **kwargs: Any) -> Any:
        if is_dynamo_compiling():
            return traced(*args, **kwargs)
        if not kwargs:
            for direct_call in direct:
                result = direct_call(*args)
                if result is not MISS:
                    return result
        result = quick.call(args, kwargs)
        if result is not MISS:
            return result
        return (traced if is_compiling() else long_way)(*args, **kwargs)

    return run


def _modes(module: nn.Module | None) -> tuple[bool, ...]:
    """Which of a module's parts train."""
    return () if module is None else tuple(m.training for m in module.modules())


def _wishes(module: nn.Module, options: Options) -> tuple[Callable[..., Any] | list[str], Options]:
    """What names a module's inputs, and the options; sizes that an ONNX file states are not made dynamic."""
    if not hasattr(module, "input_specs"):  # the reader is not imported for other modules
        return module.forward, options
    from dcir.frontends.onnx import OnnxModule

    if not isinstance(module, OnnxModule):
        return module.forward, options
    names = [spec.name for spec in module.input_specs]
    if options.dynamic is not True:
        return names, options
    free = DynamicDim(firm=False)  # a file's word: one size may be all that the operators allow
    rows = (
        (spec.name, tuple((d, free) for d, size in enumerate(spec.shape or ()) if not isinstance(size, int)))
        for spec in module.input_specs
        if spec.kind == "tensor" and not spec.host
    )
    return names, replace(options, dynamic=DynamicInputs(tuple((n, dims) for n, dims in rows if dims)))


def _unless_hooked(call: Callable[..., Any], plain: Callable[..., Any], session: Session) -> Callable[..., Any]:
    """``plain`` while there are hooks for all modules, else ``call``."""

    def run(*args: Any, **kwargs: Any) -> Any:
        if not _has_any_global_hook():
            return call(*args, **kwargs)
        session.coverage.tell(_HOOKED)
        return plain(*args, **kwargs)

    return run


def _known(**options: Any) -> dict[str, Any]:
    """Of some options of ``torch.compile`` those that this PyTorch has."""
    known = inspect.signature(torch.compile).parameters
    return {name: value for name, value in options.items() if name in known}


def _compiled(
    fn: Callable[..., Any], session: Session, calls: DynamicCalls, seen: CodeSeen, follow: Callable[[], None] = lambda: None
) -> Callable[..., Any]:  # fmt: skip
    """``fn`` through Dynamo; dcir's own errors arrive as themselves, not wrapped in Dynamo's.

    A Python function has code of its own here: what is compiled for it goes with it. ``follow`` is called before a call, and may give it
    other code.
    """
    limit = session.options.shape_limit
    compile_graph = calls.watched(compiling(session))
    coverage = session.coverage
    graphs = GraphsKeeper(session)
    session.on_late = graphs.settle
    backend = dynamo_backend(
        compile_graph,
        None,
        limited(session),
        shape_limit=limit,
        on_plain=coverage.leave,
        inputs=calls.input_names,
        strict=session.options.strict,
        own_first=session.options.dynamic is None,
        later=session.later,
        keeper=graphs,
    )
    quick = QuickGuards(backend, seen)
    borrowed = keeps_graphs_whole(BorrowedBackend(quick.backend))
    keeper = TraceKeeper(session, lambda frame: quick.begin_again(frame.code, frame.scope), borrowed.lend)
    if session.options.keep_traces:
        keeps_traces(borrowed, keeper)
        session.on_late = keeper.settle
    if isinstance(fn, FunctionType):
        drop_compiled_with(fn, borrowed)
    call = torch.compile(
        fn,
        backend=borrowed,
        dynamic=calls.for_dynamo,
        fullgraph=session.options.strict,
        # Else all modules of a class would share one limit, and what lies beyond it runs in eager mode.
        **_known(recompile_limit=max(_RECOMPILE_LIMIT, limit), isolate_recompiles=True),
    )
    name = fn.__code__.co_name if isinstance(fn, FunctionType) else getattr(fn, "__name__", "")

    once = keeper.retried(call)
    one = OneAmongSizes(on=session.options.dynamic is not False)
    all_sizes = AllSizes(on=session.options.dynamic is True)

    def run(*args: Any, **kwargs: Any) -> Any:
        if not is_dynamo_compiling():
            follow()
            if seen.changed():
                seen.forget()
                calls.forget()
        frames = counters["frames"]["total"]
        compiled = call if is_dynamo_compiling() else once
        try:
            with calls.call(args, kwargs), coverage.call(name), seldom_collected(), all_sizes.tracing():
                try:
                    with one.tracing(args, kwargs):
                        return compiled(*args, **kwargs)
                except (InternalTorchDynamoError, TorchRuntimeError, Unsupported):
                    if not one.failed(frames):
                        raise
                return compiled(*args, **kwargs)
        except BackendCompilerFailed as e:
            if isinstance(e.inner_exception, DcirError):
                raise e.inner_exception from e.inner_exception.__cause__
            raise
        finally:
            if quick.pending:
                quick.end()
            if keeper.pending and not is_dynamo_compiling():
                keeper.settle()
            if graphs.pending and not is_dynamo_compiling():
                graphs.settle()

    return run
