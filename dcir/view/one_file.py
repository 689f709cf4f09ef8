"""The page and its sessions as one file: styles, scripts and data in one document that loads nothing, under a policy that forbids it to.

Scripts of a file that is opened from disk cannot import each other, so our modules are joined to one script. That takes no more of the
language than they use, and what they use beyond it is refused: named imports at the beginning of a line, and exports that are declarations
or a list of names. Every script is named in the policy by its hash, so nothing that a record holds can run.
"""

from __future__ import annotations

import base64
import functools
import gzip
import hashlib
import html
import re
from collections.abc import Iterable
from importlib import resources
from importlib.resources.abc import Traversable

from dcir.errors import OptionError

_LINK = re.compile(r'<link rel="stylesheet" href="([^"]+)">\n?')
_SCRIPT = re.compile(r'<script (type="module" )?src="([^"]+)"></script>\n?')
_IMPORT = re.compile(r'^import\s*\{([^}]*)\}\s*from\s*"\./([^"]+)";?', re.MULTILINE)
_NAMES = re.compile(r"(?:^|(?<=[;}]))export\s*\{([^}]*)\};?", re.MULTILINE)
_DECLARED = re.compile(r"^export ((?:async )?function|const|let|class) (\w+)", re.MULTILINE)
_MAP = re.compile(r"^//# sourceMappingURL=.*$", re.MULTILINE)
_LEFT = re.compile(r"^(?:import|export)\b.*", re.MULTILINE)


def one_file(record: str, title: str = "dcir view") -> str:
    """The page as one document.

    Args:
        record: a session, or a list of two to compare, as JSON.
        title: of the document.
    """
    folder = static()
    page = (folder / "index.html").read_text(encoding="utf-8")
    styles = [(folder / name).read_text(encoding="utf-8") for name in _LINK.findall(page)]
    scripts = [joined(folder, name) if module else classic(folder, name) for module, name in _SCRIPT.findall(page)]
    first, last = scripts[:-1], scripts[-1]
    policy = "; ".join(
        (
            "default-src 'none'", f"script-src {_hashes(scripts)}", f"style-src {_hashes(styles)}", "img-src data:", "base-uri 'none'",
            "form-action 'none'",
        )
    )  # fmt: skip
    page = _SCRIPT.sub("", _LINK.sub("", page)).replace(
        "<title>dcir view</title>", f"<title>{html.escape(title)}</title>"
    )
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
    page = page.replace('<meta name="viewport"', head + '<meta name="viewport"', 1)
    inside = [f"<style>{text}</style>" for text in styles] + [f"<script>{text}</script>" for text in first]
    data = f'<script type="application/gzip" id="session">{as_data(record)}</script>'
    page = page.replace("</head>", "\n".join(inside) + "\n</head>", 1)
    return page.replace("</body>", f"{data}\n<script>{last}</script>\n</body>", 1)


def static() -> Traversable:
    """The folder of the page's files."""
    return resources.files("dcir.view") / "static"


def as_data(record: str) -> str:
    """A record as letters and digits, in which nothing that it names can be seen; names repeat, so a tenth of it is left."""
    return base64.b64encode(gzip.compress(record.encode(), mtime=0)).decode()


def classic(folder: Traversable, name: str) -> str:
    """A script that is no module."""
    return _inlinable(_MAP.sub("", _file(folder, name).read_text(encoding="utf-8")), name)


def joined(folder: Traversable, name: str) -> str:
    """A module and all that it imports as one script, each in a function of its own, after those that it needs."""
    done: dict[str, str] = {}

    def add(name: str, waiting: tuple[str, ...]) -> None:
        if name in waiting:
            raise OptionError(f"modules of the page import each other: {' -> '.join((*waiting, name))}", where="dcir/view/static",
                              hint="move what both need to a third")  # fmt: skip
        if name in done:
            return
        text = _file(folder, name).read_text(encoding="utf-8")
        base = name.rpartition("/")[0]
        for _, other in _IMPORT.findall(text):
            add(_beside(base, other), (*waiting, name))
        done[name] = _as_function(text, name, base)

    add(name, ())
    return _inlinable('"use strict";\nconst $modules = {};\n' + "\n".join(done.values()), name)


def _as_function(text: str, name: str, base: str) -> str:
    text = _MAP.sub("", text)
    text = _IMPORT.sub(
        lambda m: f'const {{{_renamed(m[1], "as", ": ")}}} = $modules["{_beside(base, m[2])}"];', text
    )  # fmt: skip
    exported = [(name, name) for _, name in _DECLARED.findall(text)]
    for names in _NAMES.findall(text):
        exported += [(pair[0], pair[-1]) for pair in _pairs(names)]
    text = _NAMES.sub("", _DECLARED.sub(r"\1 \2", text))
    left = _LEFT.search(text)
    if left is not None:
        raise OptionError(f"{left[0]!r} cannot be joined with the page's other modules", where=f"dcir/view/static/{name}",
                          hint='import { a } from "./file.js"; export function, const or class, or export { a }')  # fmt: skip
    given = ", ".join(f"{outside}: {inside}" for inside, outside in exported)
    return f'$modules["{name}"] = (() => {{\n{text}\nreturn {{ {given} }};\n}})();'


def _pairs(names: str) -> list[list[str]]:
    return [re.split(r"\s+as\s+", n.strip()) for n in names.split(",") if n.strip()]


def _renamed(names: str, word: str, sign: str) -> str:
    return ", ".join(sign.join(pair) for pair in _pairs(names))


def _beside(base: str, name: str) -> str:
    return f"{base}/{name}" if base else name


def _file(folder: Traversable, name: str) -> Traversable:
    return functools.reduce(lambda at, part: at / part, name.split("/"), folder)


def _inlinable(text: str, name: str) -> str:
    if re.search(r"</script|<!--", text, re.IGNORECASE):
        raise OptionError("a script that holds an end tag cannot stand in a page", where=f"dcir/view/static/{name}",
                          hint="write < and /script apart")  # fmt: skip
    return text


def _hashes(texts: Iterable[str]) -> str:
    return " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(t.encode()).digest()).decode()}'" for t in texts)
