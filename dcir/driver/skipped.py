"""Holds the places that the user switches off against the passes that there are."""

from __future__ import annotations

import difflib

from dcir.driver.targets.host import host_target
from dcir.errors import OptionError
from dcir.ir.sites import pass_of
from dcir.options import Options
from dcir.transforms.base import Pass
from dcir.transforms.pipelines import all_passes, pipeline


def check_skip(options: Options) -> None:
    """Refuse places of passes that do not exist.

    A pass that exists and does not run is no error: its places never come up, and ``explain`` says so.

    Args:
        options: with ``skip``.

    Raises:
        OptionError: there is no pass of a name.
    """
    passes = (*all_passes(), *pipeline(0), *host_target(None, options.target).pipeline(4), *(options.pipeline or ()))
    known = list(dict.fromkeys(p.name for p in passes if isinstance(p, Pass)))
    for site in options.skip:
        if (name := pass_of(site)) not in known:
            near = difflib.get_close_matches(name, known, n=3)
            hint = " or ".join(near) or "one of " + ", ".join(known)
            raise OptionError(f"there is no pass {name!r}", where=f"skip={site!r}", hint=hint)
