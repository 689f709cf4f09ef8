"""Every entry of a test database of PyTorch's, in processes of their own: ``python -m tests.opinfo.sweep --shard 0/4``.

``--database`` says which: operators, higher-order operators or modules (every input of each, training and evaluating).

A child tries one entry after another and prints a line for each; when it dies or takes too long, that is the entry's outcome
and another child goes on. ``--json`` keeps the outcomes, ``--merge`` joins those of several shards, ``--table`` writes them
as a page. The exit code says whether anything is wrong or crashed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests import isolated
from tests.opinfo.check import ERROR, NATIVE, OUTSIDE, PASS, REFUSED, SILENT, SKIPPED, TORCH, WRONG, Outcome, check
from tests.opinfo.entries import entries, higher_order
from tests.opinfo.modules import modules

CRASH = "crash"
_BAD = (WRONG, CRASH, ERROR, SILENT)
DATABASES = {"operators": entries, "higher_order": higher_order, "modules": modules}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the shard, or join shards."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="entries; all if none is given")
    parser.add_argument("--database", choices=DATABASES, default="operators")
    parser.add_argument("--shard", default="0/1", help="number/count: every count-th entry")
    parser.add_argument("--level", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=300, help="for one entry")
    parser.add_argument("--json", type=Path, help="outcomes, written as they come")
    parser.add_argument("--merge", type=Path, nargs="+", default=[], help="files of --json to join instead of running")
    parser.add_argument("--table", type=Path, help="a page in Markdown")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.child:
        return _child(given.names, given.level)
    if given.merge:
        outcomes = [Outcome(**o) for path in given.merge for o in json.loads(path.read_text())]
    else:
        os.environ.setdefault("DCIR_CACHE_DIR", os.path.join(tempfile.gettempdir(), f"dcir-opinfo-{os.getuid()}"))
        number, count = (int(part) for part in given.shard.split("/"))
        outcomes = []
        for outcome in sweep(
            (given.names or list(DATABASES[given.database]()))[number::count], given.level, given.seconds
        ):
            outcomes.append(outcome)
            print(f"{outcome.name}: {outcome.kind} {outcome.how} {outcome.detail}".rstrip(), flush=True)
            if given.json:
                given.json.write_text(json.dumps([o.to_json() for o in outcomes], indent=1) + "\n")
    print(summary(outcomes))
    if given.table:
        given.table.write_text(page(outcomes))
    return 1 if any(o.kind in _BAD for o in outcomes) else 0


def sweep(names: Sequence[str], level: int, seconds: float) -> Iterator[Outcome]:
    """The outcomes in order."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.opinfo.sweep", "--child", "--level", str(level), "--"]
    for name, told in isolated.outcomes(command, names, seconds):
        yield Outcome(name, CRASH, detail=told) if isinstance(told, str) else Outcome(**told)


def _child(names: Sequence[str], level: int) -> int:
    for name in names:
        isolated.report(check(name, level=level).to_json())
    return 0


def summary(outcomes: Sequence[Outcome]) -> str:
    """Counts, and the names of what is not well."""
    kinds, ways = Counter(o.kind for o in outcomes), Counter(o.how for o in outcomes if o.kind == PASS)
    tried = len(outcomes) - kinds[SKIPPED]
    lines = [f"{len(outcomes)} entries: " + ", ".join(f"{n} {kind}" for kind, n in kinds.most_common())]
    if tried:
        lines.append(
            f"of {tried} tried, {100 * kinds[PASS] / tried:.1f} % pass; "
            + ", ".join(f"{ways[how]} ({100 * ways[how] / tried:.1f} %) {how}" for how in (NATIVE, TORCH, OUTSIDE))
            + f"; {sum(o.gradients > 0 for o in outcomes)} with gradients; "
            + f"{sum(o.conditioned for o in outcomes)} within their conditioning only"
        )
    lines += [f"{o.kind}: {o.name}: {o.detail}" for o in outcomes if o.kind in (*_BAD, REFUSED)]
    return "\n".join(lines)


def page(outcomes: Sequence[Outcome]) -> str:
    """The table of coverage."""
    lines = [
        "# Operators",
        "",
        "Written by `python -m tests.opinfo.sweep --table`: one float32 sample of every entry of PyTorch's operator database,",
        "forward and gradients, against eager PyTorch. Outside: TorchDynamo hands dcir no graph of it, and eager runs it.",
        "",
        *summary(outcomes).splitlines()[:2],
        "",
        "| entry | outcome | how | through torch, or why |",
        "|---|---|---|---|",
    ]
    for o in sorted(outcomes, key=lambda o: o.name):
        why = ", ".join(o.through) if o.through and o.kind == PASS else o.detail
        lines.append(f"| {o.name} | {o.kind} | {o.how} | {why.replace('|', '/')[:120]} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
