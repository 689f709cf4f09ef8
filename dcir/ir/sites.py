"""Names of the places where passes rewrite: a pass, and the imported operators under the operators that a rewrite is about.

People write them (``skip=["fuse-epilogues@contraction_3+program_7"]``), so they are short, and the same in every process that imports the
same graph. What passes make is named by what it was made of, so a place keeps its name when rewrites elsewhere are switched off.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

_MOST = 6


def place_text(labels: Iterable[str], within: str = "") -> str:
    """The name of a place.

    Args:
        labels: of imported operators. Of many the first stand for all, with the number of the others and a digest.
        within: where the operators are in bodies of loops and branches, the way there.
    """
    ordered = sorted(set(labels))
    if len(ordered) > _MOST:
        digest = hashlib.sha256("+".join(ordered).encode()).hexdigest()[:8]
        ordered[_MOST - 1 :] = [f"~{len(ordered) - _MOST + 1}-more-{digest}"]
    return within + "+".join(ordered)


def site_text(by: str, place: str) -> str:
    """The name of a place for one pass."""
    return f"{by}@{place}"


def canonical(site: str) -> str:
    """A site as ``site_text`` writes it, whatever the order of its labels."""
    by, _, place = site.partition("@")
    within, slash, labels = place.rpartition("/")
    return site_text(by, f"{within}{slash}{'+'.join(sorted(labels.split('+')))}")


def pass_of(site: str) -> str:
    """The name of the pass."""
    return site.partition("@")[0]


def labels_of(site: str) -> list[str]:
    """The labels in a site; of many operators not all are there."""
    place = site.partition("@")[2].rpartition("/")[2]
    return [label for label in place.split("+") if label and not label.startswith("~")]
