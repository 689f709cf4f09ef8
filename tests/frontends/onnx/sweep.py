"""All comparable cases of ONNX's backend suite through compiled code: ``python -m tests.frontends.onnx.sweep --shard 0/4``.

Children try one case after another (`tests/isolated.py`). ``--json`` keeps the outcomes, ``--merge`` joins those of several
shards. The exit code says whether a case is wrong, crashed, refused without being on the list, or right without having been compiled.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests import isolated
from tests.frontends.onnx.compiled_cases import ERROR, REFUSED_KIND, RIGHT, WRONG, Outcome, cases, check

CRASH = "crash"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the shard, or join shards."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="cases; all if none is given")
    parser.add_argument("--shard", default="0/1", help="number/count: every count-th case")
    parser.add_argument("--seconds", type=float, default=300, help="for one case")
    parser.add_argument("--json", type=Path, help="outcomes, written as they come")
    parser.add_argument("--merge", type=Path, nargs="+", default=[], help="files of --json to join instead of running")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.child:
        return _child(given.names)
    if given.merge:
        outcomes = [Outcome(**o) for path in given.merge for o in json.loads(path.read_text())]
    else:
        home = Path(tempfile.gettempdir())
        os.environ.setdefault("DCIR_CACHE_DIR", str(home / f"dcir-onnx-{os.getuid()}"))
        # The suite's runner writes its bundled networks below this folder, by default in the user's home.
        os.environ.setdefault("ONNX_MODELS", str(home / f"dcir-onnx-models-{os.getuid()}"))
        number, count = (int(part) for part in given.shard.split("/"))
        outcomes = []
        for outcome in sweep((given.names or list(cases()))[number::count], given.seconds):
            outcomes.append(outcome)
            print(f"{outcome.name}: {outcome.kind} {outcome.how} {outcome.detail}".rstrip(), flush=True)
            if given.json:
                given.json.write_text(json.dumps([o.to_json() for o in outcomes], indent=1) + "\n")
    print(summary(outcomes))
    return 0 if all(o.well for o in outcomes) else 1


def sweep(names: Sequence[str], seconds: float) -> Iterator[Outcome]:
    """The outcomes in order."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.frontends.onnx.sweep", "--child", "--"]
    for name, told in isolated.outcomes(command, names, seconds):
        yield Outcome(name, CRASH, detail=told) if isinstance(told, str) else Outcome(**told)


def _child(names: Sequence[str]) -> int:
    for name in names:
        isolated.report(check(name).to_json())
    return 0


def summary(outcomes: Sequence[Outcome]) -> str:
    """Counts, refusals by reason, and the names of what is not well."""
    kinds, ways = Counter(o.kind for o in outcomes), Counter(o.how for o in outcomes if o.kind == RIGHT)
    share = 100 * sum(o.compiled for o in outcomes) / max(len(outcomes), 1)
    lines = [
        f"{len(outcomes)} cases, {share:.1f} % right and compiled: "
        + ", ".join(f"{kinds[kind]} {kind}" for kind in (RIGHT, WRONG, REFUSED_KIND, ERROR, CRASH)),
        "right: " + ", ".join(f"{n} {how}" for how, n in ways.most_common())
        + f"; {sum(o.graphs for o in outcomes)} graphs of {sum(o.operators for o in outcomes)} operators",
    ]  # fmt: skip
    refused = Counter(_reason(o) for o in outcomes if o.kind == REFUSED_KIND)
    lines += [f"refused: {n} x {reason}" for reason, n in refused.most_common()]
    lines += [f"{o.kind} {o.how}: {o.name}: {o.detail}" for o in outcomes if not o.well and o.kind != REFUSED_KIND]
    lines += [
        f"refused, not on the list: {o.name}: {o.detail}" for o in outcomes if not o.well and o.kind == REFUSED_KIND
    ]
    return "\n".join(line.replace(" : ", ": ") for line in lines)


def _reason(outcome: Outcome) -> str:
    """What is refused, without the place."""
    return re.split(r"  | where | operand ", outcome.detail)[0].strip()


if __name__ == "__main__":
    sys.exit(main())
