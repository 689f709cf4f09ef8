"""Every error dcir raises on purpose: what is wrong, where, and what to try.

One base class holds the three parts and their layout; one subclass per kind of trouble, so that callers can
catch what they can handle and the command line can choose its exit code.
"""

from __future__ import annotations

from collections.abc import Sequence


class DcirError(Exception):
    """Base of all errors of dcir; its text has three parts.

    Args:
        message: What is wrong, in the user's words, one line where possible.
        where: The place in the user's model, program or file.
        hint: What to try.
        details: Rows of (name, value) that show the evidence, printed aligned under the message.
    """

    def __init__(
        self,
        message: str,
        *,
        where: str | None = None,
        hint: str | None = None,
        details: Sequence[tuple[str, str]] = (),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.hint = hint
        self.details = tuple((str(name), str(value)) for name, value in details)

    def __str__(self) -> str:
        rows = list(self.details)
        if self.where is not None:
            rows.append(("where", self.where))
        if self.hint is not None:
            rows.append(("try", self.hint))
        if not rows:
            return self.message
        width = max(len(name) for name, _ in rows)
        # A value of several lines (a window of operators, compiler output) continues under its first line.
        indent = "\n" + " " * (width + 4)
        lines = [f"  {name:<{width}}  {value.rstrip().replace(chr(10), indent)}" for name, value in rows]
        return "\n".join([self.message, *lines])

    def __reduce__(self) -> tuple[object, ...]:
        # Exceptions are rebuilt from `args` alone by default, which would lose the keyword-only parts.
        return (_rebuild, (type(self), self.message, self.where, self.hint, self.details, self.__dict__.copy()))


def _rebuild(
    kind: type[DcirError],
    message: str,
    where: str | None,
    hint: str | None,
    details: tuple[tuple[str, str], ...],
    state: dict[str, object],
) -> DcirError:
    error = kind(message, where=where, hint=hint, details=details)
    error.__dict__.update(state)
    return error


class InvalidModel(DcirError):
    """The model file is broken or hostile."""


class InvalidInput(DcirError, ValueError):
    """The arguments of a call do not fit the compiled model."""


class TypeMismatch(DcirError):
    """Shapes or element types of an operator's operands do not fit each other."""


class Unsupported(DcirError):
    """Something in the model has no native way through dcir."""

    @classmethod
    def collect(cls, items: Sequence[tuple[str, str]], hint: str | None = None) -> Unsupported:
        """One error for all unsupported things of a model, so that users need not find them one by one.

        Args:
            items: Pairs of (what, where in the user's model), at least one; equal pairs are reported once.
            hint: What to try.
        """
        unique = list(dict.fromkeys((str(what), str(where)) for what, where in items))
        if not unique:
            raise ValueError("Unsupported.collect needs at least one item")
        if len(unique) == 1:
            what, where = unique[0]
            return cls(f"{what} is not supported", where=where, hint=hint)
        return cls(f"{len(unique)} operators are not supported", details=unique, hint=hint)


class NotDifferentiable(Unsupported, RuntimeError):
    """Gradients are asked for that compiled code does not compute; a RuntimeError, as torch's own is."""


class VerificationFailed(DcirError):
    """A pass changed numbers beyond tolerance; names the pass, the node, the error and the tolerance."""


class InvalidGraph(DcirError):
    """The internal graph breaks a rule of the IR; shows a window of ten operators around the fault."""


class InvalidOperator(DcirError, TypeError):
    """A class of operators lacks something that every operator says of itself."""


class InvalidSchedule(DcirError, ValueError):
    """A schedule asks for what its operator's kernels cannot do; says what they can."""


class CompilerNotFound(DcirError):
    """No C++ compiler was found on this machine."""


class CompilerFailed(DcirError):
    """The C++ compiler refused generated code; shows its first lines and keeps the source file."""

    source: str | None = None
    """Path of the kept source."""


class MachineBusy(DcirError):
    """Other processes worked while the machine was to be measured."""


class CacheUnavailable(DcirError):
    """No folder could be found or made in which compiled code may be kept safely."""


class ArtefactInvalid(DcirError):
    """A .dcir file is broken or was made for another machine or version."""


class SessionInvalid(DcirError):
    """A file with what `dcir view` shows is broken or hostile."""


class OptionError(DcirError, ValueError):
    """An option has an unknown name or a value it cannot take."""


class MemoryLimitTooLow(DcirError):
    """No plan that was found keeps ``memory_limit``."""

    least: int = 0
    """A limit that can be kept, in bytes."""

    @classmethod
    def of(cls, limit: int, least: int, details: Sequence[tuple[str, str]] = ()) -> MemoryLimitTooLow:
        """The error for a limit, given the least one that can be kept."""
        error = cls(
            f"memory_limit={limit} cannot be kept; the least possible limit is {least} bytes",
            hint=f"memory_limit={least} or more, or a smaller batch",
            details=details,
        )
        error.least = least
        return error


class IndexOutOfRange(DcirError, IndexError):
    """An index that comes from data points outside the tensor it indexes."""


class FallbackFailed(DcirError, RuntimeError):
    """An operator that runs through torch instead of generated code raised an error, as torch's own are: a ``RuntimeError``."""


class NotCompiledWarning(UserWarning):
    """A module runs in PyTorch for now; the text says why."""


class RecompileWarning(UserWarning):
    """Something was compiled again because a call differed from those before, or was not because ``shape_limit`` is reached."""
