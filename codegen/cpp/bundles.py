"""Which units are compiled together, and their source: the start of a compiler costs as much as a small kernel."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

# Characters of a bundle. The upper bound keeps what another network finds here, and has to link, small; below the lower
# one a second compiler costs more than it brings, cores or not.
_MOST = 150_000
_LEAST = 20_000


def bundles(units: Mapping[str, tuple[str, int]], workers: int) -> list[tuple[str, ...]]:
    """Keys in the groups in which they are compiled.

    Args:
        units: for every key what its unit shares with others, empty if it is compiled alone, and its characters.
        workers: compilers that may run at the same time.
    """
    alone = [(key,) for key, (shared, _) in units.items() if not shared]
    headers = sorted({shared for shared, _ in units.values() if shared})
    sizes = [{key: size for key, (shared, size) in units.items() if shared == header} for header in headers]
    return [*alone, *(keys for one in sizes for keys in _groups(one, workers))]


def _groups(sizes: Mapping[str, int], workers: int) -> list[tuple[str, ...]]:
    """Groups of about equal size, as many as workers where there is enough for each."""
    total = sum(sizes.values())
    count = max(1, -(-total // _MOST), min(workers, total // _LEAST))
    groups: list[list[str]] = [[] for _ in range(min(count, len(sizes)))]
    filled = [0] * len(groups)
    # The largest first, each to the group with the most room.
    for key in sorted(sizes, key=lambda key: (-sizes[key], key)):
        at = filled.index(min(filled))
        groups[at].append(key)
        filled[at] += sizes[key]
    return [tuple(sorted(group)) for group in groups]


def bundle_text(shared: str, texts: Sequence[str]) -> str:
    """One source of many units: what they share, then each in a namespace, so that equal names of helpers do not meet."""
    if len(texts) == 1:
        return shared + texts[0]
    return shared + "".join(f"namespace unit{i} {{\n{text}\n}}\n" for i, text in enumerate(texts))


def second_name(path: Path, name: Path) -> None:
    """Give a file a second name, or a copy where the file system has no links."""
    try:
        os.link(path, name)
    except OSError:
        shutil.copyfile(path, name)
