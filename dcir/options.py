"""The options of a compilation: one frozen record, checked when it is made."""

from __future__ import annotations

import dataclasses
import difflib
import math
import os
import re
from dataclasses import dataclass, field

from dcir import cores
from dcir.dynamic import DynamicInputs, parse_dynamic
from dcir.errors import OptionError
from dcir.targets import DEFAULT, known_targets, target_class

LEVELS = {
    0: "lower and run, loops in order",
    1: "operator-internal passes, schedules",
    2: "fusion",
    3: "layout",
    4: "global data movement",
}
VERIFY = ("off", "passes")
PREPARE = ("version", "always", "frozen")
HINTS = ("latency", "throughput")

KEEP_NAME = "DCIR_KEEP_TRACES"
KEEP_GRAPHS_NAME = "DCIR_KEEP_GRAPHS"

# Accepted by name so that a program written for a later version gets a clear answer instead of a guess.
NOT_YET_PRECISIONS = ("bf16", "fp16", "int8")

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?\s*", re.IGNORECASE)
_TIME = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([smh]?)\s*")
_SITE = re.compile(r"[^\s@+/]+@[^\s@]+")
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600}
TUNE_SECONDS = 60.0
_POWER = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


@dataclass(frozen=True)
class Options:
    """What the user asks of a compilation.

    Attributes:
        level: 0 to 4; runs the passes of all tiers up to it (0: none, and kernels are plain loops). Levels never change precision.
        target: "cpp" (C++/OpenMP), "dace" (the same graph through DaCe's own compiler), "cuda"
            (NVIDIA GPUs), or one of another package (``targets.py``).
        verify: "off", or "passes" to compare numbers after every pass.
        strict: Whether an operator without generated code is an error instead of a call to torch.
        threads: Size of the thread team; None means as many as torch uses.
        until: Name of the last pass to run.
        dynamic: Which sizes may change without a new trace of the program: True (all), False (none), None (those that did change),
            or a dictionary {input: {dimension: name or torch.export.Dim}} with bounds (see ``dcir.dynamic``).
        shape_limit: For how many combinations of sizes one trace with symbolic sizes is compiled; calls with further ones run in torch.
        pipeline: The passes to run instead of those of the level, in this order; nothing is added to them.
        schedule: Schedules of operators by pattern: {pattern: dcir.ir.schedule.Schedule} (``transforms/tier1_operator/set_schedules.py``).
        remarks: Whether to record what passes say of each place: done, not done and why, found out (``fast.dcir.remarks()``).
        skip: Places at which passes are to do nothing, as remarks name them ("fuse-epilogues@contraction_3+program_7").
        history: Whether to keep every graph as each pass leaves it, and its code, for ``fast.dcir.view()``.
        debug_dir: Folder that receives the graph and the code of every step.
        memory_limit: Upper bound in bytes of a call's planned scratch memory, and of what a forward keeps for its backward.
        precision: Element type of the arithmetic.
        tune: Seconds in which to measure alternatives of kernels before the first call; None measures nothing.
        prepare: When what depends on parameters alone (packed weights, folded constants) is computed in inference: "version" (first, and
            whenever a parameter may have changed, in whatever way), "always" (in every call), or "frozen" (first, and when
            ``refresh`` is called: the caller promises that parameters do not change).
        fused_optimizers: Whether torch's optimisers of the module's parameters use their fused form when not told otherwise.
        hint: "latency": a call has all threads; "throughput": several calls run at once, each by a team of its own
            (``fast.dcir.submit``), and kernels are made for teams of that size.
        streams: How many calls run at once; None leaves it to a cost model (``cost/stream_number.py``). A number is a wish for throughput.
        background: Whether inference is compiled behind the calls, which torch runs until then; sizes that come often then get programs of
            their own (``driver/calls/background.py``). Not with ``strict``.
        record_function: Whether torch.profiler sees every kernel of a call, not the call alone. Only the driver is
            compiled anew, and calls that nobody profiles run as without.
        keep_traces: Whether what PyTorch finds out by tracing is kept in the cache, and used by later processes instead of a new trace,
            as long as the model's code and all that the trace depended on are the same. ``DCIR_KEEP_TRACES=1`` has them kept where
            nothing is said.
        keep_graphs: Whether what becomes of the graphs that PyTorch traces, those of training steps included, is kept in the cache, and
            found again by later processes that trace the same ones. ``DCIR_KEEP_GRAPHS=0`` keeps none where nothing is said.
        cuda_graphs: Whether repeated calls on a GPU are replays of one that is recorded, one launch in place of one a kernel
            (``runtime/cuda_replays.py``). What moves between calls is copied in, results are copied out; a program that cannot be recorded
            runs as without, which ``strict`` forbids. ``torch.compile(mode="reduce-overhead")`` asks for it.
        own_exchange: Whether dcir sends what ``fully_shard`` gathers and reduces over gloo, where all processes run it, and the
            process keeps the memory that comes free with every exchange.
    """

    level: int = 4
    target: str = DEFAULT
    verify: str = "off"
    strict: bool = False
    threads: int | None = None
    until: str | None = None
    dynamic: bool | DynamicInputs | None = None
    shape_limit: int = 16
    pipeline: tuple[object, ...] | None = None
    schedule: tuple[tuple[str, object], ...] | None = None
    remarks: bool = False
    skip: tuple[str, ...] = ()
    history: bool = False
    debug_dir: str | None = None
    memory_limit: int | None = None
    precision: str = "fp32"
    fused_optimizers: bool = True
    tune: float | None = None
    prepare: str = "version"
    hint: str = "latency"
    streams: int | None = None
    background: bool = False
    record_function: bool = False
    keep_traces: bool = field(default_factory=lambda: os.environ.get(KEEP_NAME) == "1")
    keep_graphs: bool = field(default_factory=lambda: os.environ.get(KEEP_GRAPHS_NAME) != "0")
    own_exchange: bool = False
    cuda_graphs: bool = False

    def __post_init__(self) -> None:
        if not _is_int(self.level) or self.level not in LEVELS:
            raise _bad("level", self.level, "one of 0, 1, 2, 3, 4")
        _check_choice("target", self.target, tuple(known_targets()))
        _check_choice("verify", self.verify, VERIFY)
        _check_choice("prepare", self.prepare, PREPARE)
        _check_choice("hint", self.hint, HINTS)
        _check_streams(self.streams, self.hint, self.threads)
        for name in (f.name for f in dataclasses.fields(self) if f.type == "bool"):
            if not isinstance(getattr(self, name), bool):
                raise _bad(name, getattr(self, name), "True or False")
        if self.background and self.strict:
            raise _bad("background", True, "strict=False: torch runs calls until their programs are there")
        if self.threads is not None and (not _is_int(self.threads) or self.threads < 1):
            raise _bad("threads", self.threads, "a number from 1 up, or 'auto'")
        for name in ("until", "debug_dir"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value):
                raise _bad(name, value, "the name of a pass" if name == "until" else "the path of a folder")
        if self.pipeline is not None and not isinstance(self.pipeline, tuple):
            raise _bad("pipeline", self.pipeline, "a tuple of passes")
        if not isinstance(self.skip, tuple) or not all(isinstance(s, str) and _SITE.fullmatch(s) for s in self.skip):
            raise _bad(
                "skip",
                self.skip,
                "a list of places such as 'fuse-epilogues@contraction_3+program_7', as remarks name them",
            )
        if self.schedule is not None and not _are_pairs(self.schedule):
            raise _bad("schedule", self.schedule, "{'product *': dcir.ir.schedule.Schedule.of(parallel={'m': 2})}")
        if self.schedule and not target_class(self.target).schedules:
            raise _not_yet("schedule", self.schedule, f"target={DEFAULT!r}; {self.target} runs loops as it likes")
        parse_dynamic(self.dynamic)
        if not _is_int(self.shape_limit) or self.shape_limit < 1:
            raise _bad("shape_limit", self.shape_limit, "a number from 1 up")
        if self.memory_limit is not None and (not _is_int(self.memory_limit) or self.memory_limit <= 0):
            raise _bad("memory_limit", self.memory_limit, "a size such as '512MB' or '2GiB'")
        if self.memory_limit is not None and not target_class(self.target).plans_memory:
            raise _not_yet(
                "memory_limit", self.memory_limit, f"target={DEFAULT!r}; {self.target} allocates as it likes"
            )
        if self.tune is not None and not target_class(self.target).tunes:
            raise _not_yet("tune", self.tune, f"target={DEFAULT!r}; {self.target} makes its kernels in one way")
        if self.record_function and not target_class(self.target).records:
            raise _not_yet("record_function", True, f"target={DEFAULT!r}; {self.target} tells of calls alone")
        if self.cuda_graphs and not target_class(self.target).replays:
            raise OptionError(
                f"target {self.target!r} has no graphs of CUDA to replay",
                where="cuda_graphs=True",
                hint="target='cuda'",
            )
        if self.precision in NOT_YET_PRECISIONS:
            raise _not_yet("precision", self.precision, "precision='fp32'")
        _check_choice("precision", self.precision, ("fp32",))
        if self.tune is not None and (not isinstance(self.tune, float) or not 0 < self.tune < math.inf):
            raise _bad("tune", self.tune, "True, or a time such as '60s' or '5m'")

    @classmethod
    def make(cls, **values: object) -> Options:
        """Options from what people write: level="O3", memory_limit="2GB", threads="auto", pipeline=[...].

        Raises:
            OptionError: An unknown name, or a value that the option cannot take.
        """
        known = [field.name for field in dataclasses.fields(cls)]
        for name in values:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=2, cutoff=0.5)
                hint = " or ".join(near) if near else "one of " + ", ".join(known)
                raise OptionError(f"there is no option {name!r}", where=f"{name}={values[name]!r}", hint=hint)
        readers = {
            "level": parse_level,
            "threads": parse_threads,
            "memory_limit": parse_size,
            "pipeline": _parse_pipeline,
            "schedule": _parse_schedule,
            "skip": _parse_skip,
            "debug_dir": _parse_path,
            "tune": parse_duration,
            "dynamic": parse_dynamic,
        }
        if values.get("streams") is not None:
            values = {"hint": "throughput", **values}
        read = {name: readers[name](value) if name in readers else value for name, value in values.items()}
        return cls(**read)  # type: ignore[arg-type]  # __post_init__ checks every type

    def cache_key(self) -> str:
        """A text that is equal for options that lead to the same code, in every process.

        Options that only watch (verify, debug_dir, record_function, remarks, history), only refuse (strict), concern no code of ours
        (fused_optimizers) or lead to what is in the cache (tune), or decide what is compiled or computed when (dynamic, shape_limit,
        prepare, background, keep_traces, keep_graphs, cuda_graphs) or who exchanges it (own_exchange), are left out.

        Raises:
            OptionError: An entry of the pipeline cannot be described by name and fields.
        """
        watching = {"verify", "debug_dir", "strict", "fused_optimizers", "tune", "dynamic", "shape_limit", "prepare"}
        watching |= {"hint", "streams", "record_function", "remarks", "background", "history"}
        watching |= {"keep_traces", "keep_graphs", "own_exchange", "cuda_graphs"}
        watching |= {"skip"} if not self.skip else set()
        parts = (
            f"{field.name}={_stable(frozenset(self.skip) if field.name == 'skip' else getattr(self, field.name))}"
            for field in dataclasses.fields(self)
            if field.name not in watching
        )
        return "Options(" + ", ".join(parts) + ")"

    def refuse_streams(self, what: str) -> None:
        """Refuse ``hint="throughput"`` for what has no calls to submit.

        Raises:
            OptionError: it is asked for.
        """
        if self.hint != "latency":
            raise OptionError(
                f"{what} runs one call at a time", where=f"hint={self.hint!r}",
                hint="dcir.optimize(model, hint='throughput'), and fast.dcir.submit(inputs)",
            )  # fmt: skip


def parse_level(value: object) -> object:
    """The number of a level from 3, "3", "O3" or "-O3"; other values are returned for the check to refuse."""
    if isinstance(value, str):
        match = re.fullmatch(r"-?[oO]?(\d)", value.strip())
        return int(match[1]) if match else value
    return value


def parse_threads(value: object) -> object:
    """The number of threads from 8, "8" or "auto" (None)."""
    if isinstance(value, str):
        text = value.strip().lower()
        return None if text == "auto" else int(text) if text.isdecimal() else value
    return value


def parse_size(value: object) -> int | None:
    """Bytes from 4096, "4096", "2GB" (powers of 1000) or "2GiB" (powers of 1024).

    Raises:
        OptionError: The value is no size or is not positive.
    """
    if value is None:
        return None
    if isinstance(value, str):
        match = _SIZE.fullmatch(value)
        if match is None:
            raise _bad("memory_limit", value, "a size such as '512MB' or '2GiB'")
        base = 1024 if match[3] else 1000
        value = int(float(match[1]) * base ** _POWER[match[2].lower()])
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise _bad("memory_limit", value, "a size such as '512MB' or '2GiB'")
    return value


def parse_duration(value: object) -> float | None:
    """Seconds from 60, "60", "60s", "5m", "1h" or True (a minute); None from None and False.

    Raises:
        OptionError: The value is no time or is not positive.
    """
    if value is None or value is False:
        return None
    if value is True:
        return TUNE_SECONDS
    if isinstance(value, str) and (match := _TIME.fullmatch(value)):
        value = float(match[1]) * _SECONDS[match[2]]
    if not isinstance(value, int | float) or not 0 < value < math.inf:
        raise _bad("tune", value, "True, or a time such as '60s' or '5m'")
    return float(value)


def _parse_pipeline(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


def _parse_skip(value: object) -> object:
    return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value


def _parse_schedule(value: object) -> object:
    return tuple(value.items()) if isinstance(value, dict) else value


def _are_pairs(value: object) -> bool:
    return isinstance(value, tuple) and all(
        isinstance(v, tuple) and len(v) == 2 and isinstance(v[0], str) for v in value
    )


def _parse_path(value: object) -> object:
    return value.__fspath__() if hasattr(value, "__fspath__") else value


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value in choices:
        return
    near = difflib.get_close_matches(str(value), choices, n=1)
    hint = f"{name}={near[0]!r}" if near else "one of " + ", ".join(map(repr, choices))
    raise OptionError(f"option {name} cannot be {value!r}", where=f"{name}={value!r}", hint=hint)


def _check_streams(streams: object, hint: str, threads: int | None) -> None:
    if streams is None:
        return
    if not _is_int(streams) or not isinstance(streams, int) or streams < 1:
        raise _bad("streams", streams, "a number from 1 up, or None to have one chosen")
    if hint == "latency" and streams > 1:
        raise OptionError(
            "several streams do not shorten one call", where=f"streams={streams}, hint='latency'", hint="hint='throughput'"
        )  # fmt: skip
    usable = min(cores.usable_threads(), threads or streams)
    if streams > usable:
        raise OptionError(
            f"{streams} streams want a processor each, and {usable} can be used",
            where=f"streams={streams}" + (f", threads={threads}" if threads is not None else ""),
            hint=f"streams={usable}, or leave streams out to have a number chosen",
        )


def _bad(name: str, value: object, wanted: str) -> OptionError:
    return OptionError(f"option {name} cannot be {value!r}", where=f"{name}={value!r}", hint=wanted)


def _not_yet(name: str, value: object, instead: str) -> OptionError:
    return OptionError(f"{name}={value!r} is not implemented yet", where=f"{name}={value!r}", hint=instead)


def _stable(value: object) -> str:
    """A text of a value that holds no address and no order of a hash table."""
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return repr(value)
    if isinstance(value, tuple | list):
        return "(" + ", ".join(_stable(item) for item in value) + ")"
    if isinstance(value, frozenset | set):
        return "{" + ", ".join(sorted(_stable(item) for item in value)) + "}"
    if isinstance(value, dict):
        return "{" + ", ".join(sorted(f"{_stable(key)}: {_stable(item)}" for key, item in value.items())) + "}"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = (f"{field.name}={_stable(getattr(value, field.name))}" for field in dataclasses.fields(value))
        return f"{_path(type(value))}({', '.join(fields)})"
    if isinstance(value, type) or callable(value):
        return _path(value)
    raise _unnameable(value)


def _path(value: object) -> str:
    name = getattr(value, "__qualname__", None)
    if name is None or name.endswith("<lambda>"):
        raise _unnameable(value)
    return f"{getattr(value, '__module__', '')}.{name}"


def _unnameable(value: object) -> OptionError:
    return OptionError(
        f"a pipeline entry of type {type(value).__name__} cannot be part of a cache key",
        where="pipeline",
        hint="make it a frozen dataclass; its fields are its options",
    )
