"""What a page of `dcir view` may ask for besides looking: variants of the session, predicted and measured, and exports."""

from __future__ import annotations

import io
import json
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dcir.driver.session import Progress
from dcir.driver.view.capture import Captured
from dcir.driver.view.comparison import SECONDS, compare
from dcir.driver.view.delta import Delta
from dcir.driver.view.prediction import figures, predict
from dcir.driver.view.script import script
from dcir.errors import DcirError, InvalidInput, OptionError
from dcir.ir.dace.open_network import open_network
from dcir.report.model_explorer import collection

FORMATS = ("model-explorer", "chrome-trace", "sdfg", "json")
_MOST_VARIANTS = 1000


class Workshop:
    """Variants of a captured model; the first is the model as it is.

    Attributes:
        variants: as plain data (``report/session_record.py``).

    Args:
        captured: the model, with its sources.
        measures: whether variants may be compiled and run.
        seconds: how long to measure each.
    """

    def __init__(self, captured: Captured, *, measures: bool = True, seconds: float = SECONDS) -> None:
        self._captured, self.measures, self._seconds = captured, measures, seconds
        self._at_work = threading.Lock()
        self.variants: list[dict[str, Any]] = []
        self.predicts = True
        self._add(None, Delta(), {"predicted": self._base()})

    def session(self) -> dict[str, Any]:
        """The session record with all variants."""
        return self._captured.record(self.variants)

    def predict(self, parent: Any, delta: Any) -> dict[str, Any]:
        """A new variant; where there is no such one, it says why in ``error``.

        Args:
            parent: number of the variant that it was made from.
            delta: the whole change, as plain data (``Delta.from_json``).

        Raises:
            InvalidInput: there is no such parent, or there are too many variants.
        """
        self.variant(parent)
        if len(self.variants) >= _MOST_VARIANTS:
            raise InvalidInput(f"there are {_MOST_VARIANTS} variants", hint="begin again with dcir view")
        change = Delta()
        try:
            change = Delta.from_json(delta)
            with self._at_work:
                return self._add(parent, change, {"predicted": predict(self._captured, change)})
        except DcirError as error:
            return self._add(parent, change, {"error": as_data(error)})

    def measure(self, number: int, progress: Progress | None = None) -> dict[str, Any]:
        """Compile and measure a variant next to the session.

        Raises:
            InvalidInput: there is no such variant.
            OptionError: nothing may be compiled here.
            DcirError: it cannot be compiled.
        """
        variant = self.variant(number)
        if not self.measures:
            raise OptionError("this session is only looked at", hint="dcir view MODEL, or fast.dcir.view(inputs)")
        if variant["error"] is not None:
            raise InvalidInput(f"there is no such compilation: {variant['error']['message']}")
        base = self._captured
        with self._at_work:
            variant["measured"] = compare(
                base.subject, base.options, Delta.from_json(variant["delta"]), seconds=self._seconds, progress=progress
            )
        return variant

    def variant(self, number: Any) -> dict[str, Any]:
        """A variant by its number.

        Raises:
            InvalidInput: there is none.
        """
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < len(self.variants):
            raise InvalidInput("there is no such variant", where=f"variant {str(number)[:20]}")
        return self.variants[number]

    def export(self, form: str) -> bytes | None:
        """The session in another format; None where nothing of it can be said there."""
        return export(self._captured, form, self.variants)

    def _base(self) -> dict[str, Any]:
        # What was measured has a driver with a clock in it; its key is that of no other compilation.
        if self._captured.profile is None:
            return figures(self._captured.graphs)
        return predict(self._captured, Delta())

    def _add(self, parent: int | None, delta: Delta, known: dict[str, Any]) -> dict[str, Any]:
        base = self._captured
        try:
            text = script(base.subject, base.options, delta)
        except DcirError:
            text = ""
        variant = {
            "id": len(self.variants), "parent": parent, "delta": delta.to_json(), "predicted": None, "measured": None,
            "script": text, "error": None, **known,
        }  # fmt: skip
        self.variants.append(variant)
        return variant


def export(captured: Captured, form: str, variants: Sequence[dict[str, Any]] = ()) -> bytes | None:
    """A captured model as Model Explorer's collection, Chrome's trace, an SDFG (of several graphs the first), or the record.

    Raises:
        OptionError: there is no such format.
    """
    if form not in FORMATS:
        raise OptionError(f"a format is one of {', '.join(FORMATS)}", where=f"--format {form}")
    networks = [(kept.record.kind, kept.network) for kept in captured.graphs if kept.network is not None]
    if form == "json":
        return _json(captured.record(variants))
    if form == "chrome-trace":
        return None if captured.profile is None else _json(captured.profile.to_chrome_trace())
    if not networks:
        return None
    if form == "model-explorer":
        return _json(collection(f"{captured.subject.name} -O{captured.options.level}", networks))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.sdfg"
        open_network(networks[0][1]).save(str(path))
        return path.read_bytes()


def as_data(error: DcirError) -> dict[str, Any]:
    """An error as plain data."""
    return {"kind": type(error).__name__, "message": error.message, "where": error.where, "try": error.hint}


def _json(data: Any) -> bytes:
    out = io.StringIO()
    json.dump(data, out, separators=(",", ":"), allow_nan=False)
    return (out.getvalue() + "\n").encode()
