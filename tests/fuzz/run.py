"""Many random networks from a seed: ``python -m tests.fuzz.run --cases 500 --seed 1``.

Every failure is printed as the program that reproduces it and as a ``Case(...)`` for ``--case``; with ``--shrink``, the smallest
case like it follows.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
import traceback

from tests.fuzz.case import Case, Input
from tests.fuzz.check import NotACase, check
from tests.fuzz.generate import random_case, shrunk

NO_CASE = "refused by eager or nothing to compile"


def main() -> int:
    """Run the cases; the exit code says whether any failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long")
    parser.add_argument("--level", type=int, default=4)
    parser.add_argument("--shrink", action="store_true")
    parser.add_argument("--case", help="run this case only")
    parser.add_argument("--list", action="store_true", help="print every case")
    given_arguments = parser.parse_args()
    os.environ.setdefault("DCIR_CACHE_DIR", os.path.join(tempfile.gettempdir(), f"dcir-fuzz-{os.getuid()}"))
    if given_arguments.case:
        case = eval(given_arguments.case, {"Case": Case, "Input": Input})
        print(case.source())
        check(case, level=given_arguments.level)
        return 0
    count = {"right": 0, NO_CASE: 0, "wrong": 0}
    end = time.monotonic() + given_arguments.seconds
    for seed in range(given_arguments.seed, given_arguments.seed + given_arguments.cases):
        if time.monotonic() > end:
            break
        case, choices = random_case(seed)
        if given_arguments.list:
            print(seed, case, flush=True)
        found = outcome(case, given_arguments.level)
        count[found[0]] += 1
        if found[0] != "wrong":
            continue
        print(f"--- case {seed}: {found[1]}\n{case}\n{case.source()}", flush=True)
        if given_arguments.shrink:
            small = shrunk(choices, lambda c, kind=found[1][:12]: _same_kind(c, kind, given_arguments.level))
            print(
                f"--- case {seed}, shrunk: {outcome(small, given_arguments.level)[1]}\n{small}\n{small.source()}",
                flush=True,
            )
    print(", ".join(f"{number} {what}" for what, number in count.items()))
    return 1 if count["wrong"] else 0


def _same_kind(case: Case, kind: str, level: int) -> bool:
    return outcome(case, level)[1][:12] == kind


def outcome(case: Case, level: int = 4) -> tuple[str, str]:
    """ "right", "wrong" or ``NO_CASE``, and what is wrong."""
    try:
        check(case, level=level)
    except NotACase:
        return NO_CASE, ""
    except Exception as e:
        if isinstance(e, AssertionError):
            return "wrong", f"{type(e).__name__}: {e}"
        return "wrong", "".join(traceback.format_exception_only(e)) + "".join(traceback.format_tb(e.__traceback__)[-4:])
    return "right", ""


if __name__ == "__main__":
    raise SystemExit(main())
