"""Templates: how files are read, what is refused, and that every use in the package fits the part it names."""

import ast
from collections import Counter
from pathlib import Path

import pytest

from dcir import driver as package
from dcir.codegen.cpp import template
from dcir.codegen.cpp.template import FOLDER, INLINE, NOINLINE, Template, templates

PACKAGE = Path(template.__file__).resolve().parent.parent
DRIVER = Path(package.__file__).resolve().parent
NAMES = sorted(str(path.relative_to(FOLDER).with_suffix("")) for path in FOLDER.rglob("*.inc"))


@pytest.fixture
def written(tmp_path, monkeypatch):
    """A function that writes a file of templates and reads it."""
    monkeypatch.setattr(template, "FOLDER", tmp_path)
    templates.cache_clear()

    def write(text):
        (tmp_path / "some.inc").write_text(text)
        return templates("some")

    yield write
    templates.cache_clear()


def test_parts(written):
    parts = written(
        "//@ one\n//# Why.\n//# And how.\n\nint $name = ${value}LL;\n\n//@ two\n$inline f() {}\n//@ three\n  // $noinline\n"
    )
    assert list(parts) == ["one", "two", "three"]
    assert parts.one(name="x", value=3) == "\nint x = 3LL;\n"  # the last line break is the next part's
    assert parts.two() == f"{INLINE} f() {{}}"
    assert parts.three() == f"  // {NOINLINE}"
    assert parts.one.names == {"name", "value"}
    assert parts.one.text == "\nint ${name} = ${value}LL;\n"


def test_what_is_filled_in_is_not_read_again():
    assert Template.of("$a $b")(a="$b", b=1) == "$b 1"


def test_values():
    part = Template.of("$a + $b", "somewhere")
    assert part(a=1, b=2) == part({"a": 1, "b": 2, "c": 3}) == part({"a": 4, "c": 3, "b": 2}, a=1) == "1 + 2"
    with pytest.raises(LookupError, match="somewhere wants b"):
        part(a=1)
    with pytest.raises(LookupError, match="somewhere wants b"):
        part({"a": 1})
    with pytest.raises(LookupError, match="somewhere has no c, d"):
        part({"a": 1}, b=2, c=3, d=4)


@pytest.mark.parametrize("text", ["a $ b", "costs 3$", "${name", "$$x"])
def test_a_dollar_without_a_name(text):
    with pytest.raises(ValueError, match="somewhere: a \\$"):
        Template.of(text, "somewhere")


@pytest.mark.parametrize("text", ["int x;\n//@ one\n", "//@ one\n//@ two\n//@ one\n"])
def test_damaged_files(written, text):
    with pytest.raises(ValueError, match=r"templates/some\.inc"):
        list(written(text))


def test_unknown_parts(written):
    with pytest.raises(AttributeError, match=r"templates/some\.inc has no part two"):
        _ = written("//@ one\n").two


def uses(path):
    """Of a module: (part, its uses as (keywords, whether facts are shared), None where it is not called on the spot)."""
    tree = ast.parse(path.read_text())
    files = {}

    def file_of(node):
        if isinstance(node, ast.Name):
            return files.get(node.id)
        read = isinstance(node, ast.Call) and ast.unparse(node.func) == "templates"
        return node.args[0].value if read else None

    def parts(node):
        if isinstance(node, ast.IfExp):
            return [*parts(node.body), *parts(node.orelse)]
        file = file_of(node.value) if isinstance(node, ast.Attribute) else None
        return [(file, node.attr)] if file is not None else []

    for node in tree.body:
        if isinstance(node, ast.Assign) and file_of(node.value) is not None:
            files[node.targets[0].id] = file_of(node.value)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield from ((part, None) for part in parts(node))
        if isinstance(node, ast.Call):
            called = ({k.arg for k in node.keywords}, bool(node.args) or any(k.arg is None for k in node.keywords))
            yield from ((part, called) for part in parts(node.func))


ALL_USES = [(path, *use) for path in sorted([*PACKAGE.rglob("*.py"), *DRIVER.rglob("*.py")]) for use in uses(path)]


def test_every_use_fits():
    wrong = []
    for path, (name, part), called in ALL_USES:
        if part not in list(templates(name)):
            wrong.append(f"{path.name}: {name}.{part} is no part")
        elif called is not None:
            keywords, shared = called
            known = getattr(templates(name), part).names
            wrong += [f"{path.name}: {name}.{part} has no {k}" for k in sorted((keywords - {None}) - known)]
            wrong += [f"{path.name}: {name}.{part} wants {k}" for k in sorted(known - keywords) if not shared]
    assert wrong == []


def test_every_part_is_used():
    used = Counter(part for _, part, _ in ALL_USES)
    assert [f"{name}.{part}" for name in NAMES for part in templates(name) if not used[name, part]] == []


@pytest.mark.parametrize("name", NAMES)
def test_files(name):
    text = (FOLDER / f"{name}.inc").read_text()
    assert text.endswith("\n")
    assert not any(
        line.startswith(("//@", "//#"))
        for part in templates(name)
        for line in getattr(templates(name), part).text.splitlines()
    )
