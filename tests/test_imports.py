"""No module imports itself by way of others, at its top or inside a function. What type checkers alone read imports nothing."""

import ast
import graphlib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def modules(package: Path) -> dict[str, Path]:
    """The files of a package by the names of their modules; folders that stand elsewhere are linked in it."""
    found = {}
    waiting = [(package.name, package)]
    while waiting:
        name, folder = waiting.pop()
        for path in sorted(folder.iterdir()):
            if path.is_dir() and (path / "__init__.py").is_file():
                waiting.append((f"{name}.{path.name}", path))
            elif path.name == "__init__.py":
                found[name] = path
            elif path.suffix == ".py":
                found[f"{name}.{path.stem}"] = path
    return found


def executed(node: ast.AST) -> Iterator[ast.AST]:
    """A statement and all that is in it, but for what stands under ``if TYPE_CHECKING``."""
    yield node
    checked = isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    for child in node.orelse if checked else ast.iter_child_nodes(node):
        yield from executed(child)


def imported(path: Path, known: dict[str, Path]) -> set[str]:
    """The modules among the known ones that a file imports, wherever it does."""
    found = set()
    for node in executed(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            assert node.level == 0, f"{path}: a relative import"
            full = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in known else node.module for name in full}
    return found & known.keys()


def circle(package: Path) -> list[str]:
    """Modules each of which imports the next, the first being the last, too; empty if there are none."""
    known = modules(package)
    graph = {name: imported(path, known) - {name} for name, path in known.items()}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as e:
        return list(reversed(e.args[1]))
    return []


def test_no_circle_of_imports():
    assert len(modules(ROOT / "dcir")) > 300
    assert circle(ROOT / "dcir") == []


@pytest.mark.parametrize(
    "text",
    [
        "import small.first",
        "from small import first",
        "from small.first import f",
        "def g():\n    from small.first import f",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import os\nelse:\n    from small.first import f",
    ],
)
def test_a_circle_is_seen(tmp_path, text):
    package = tmp_path / "small"
    (package / "inner").mkdir(parents=True)
    for folder in (package, package / "inner"):
        (folder / "__init__.py").touch()
    (package / "first.py").write_text("from small.inner import second\n")
    for harmless in ("import os", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from small.first import f"):
        (package / "inner" / "second.py").write_text(harmless)
        assert circle(package) == []
    (package / "inner" / "second.py").write_text(text)
    assert set(circle(package)) == {"small.first", "small.inner.second"}


def test_no_pass_imports_another():
    known = {name: path for name, path in modules(ROOT / "dcir").items() if name.startswith("dcir.transforms.t")}
    passes = {name: path for name, path in known.items() if "(Pass):" in path.read_text()}
    assert len(passes) > 20
    assert {name: found for name, path in passes.items() if (found := imported(path, passes) - {name})} == {}
