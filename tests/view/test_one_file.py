"""The page as one file: everything is in it, its policy names every script, and no text of a record ends an element."""

from __future__ import annotations

import base64
import gzip
import hashlib
import html.parser
import json
import re
from pathlib import Path

import pytest

from dcir.errors import OptionError
from dcir.view.one_file import as_data, joined, one_file, static
from tests.view import synthetic

NASTY = '</script><script>alert(1)</script><!-- \u2028 "'


class Parts(html.parser.HTMLParser):
    """Elements that hold text, and what would be loaded."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.styles: list[str] = []
        self.loaded: list[str] = []
        self.policy = ""
        self.at = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.loaded += [
            given[key] or "" for key in ("src", "href") if key in given and not (given[key] or "").startswith("data:")
        ]
        assert not [key for key in given if key.startswith("on") or key == "style"]
        if given.get("http-equiv") == "Content-Security-Policy":
            self.policy = given["content"] or ""
        self.at = tag
        if tag == "script":
            self.scripts.append((given, ""))

    def handle_data(self, data: str) -> None:
        if self.at == "script":
            self.scripts[-1] = (self.scripts[-1][0], self.scripts[-1][1] + data)
        if self.at == "style":
            self.styles.append(data)

    def handle_endtag(self, tag: str) -> None:
        self.at = ""


def sha(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def test_nothing_is_loaded_and_the_policy_names_every_script_and_style() -> None:
    page = Parts(one_file(json.dumps(synthetic.mlp())))
    assert page.loaded == []
    running = [text for given, text in page.scripts if given.get("type") != "application/gzip"]
    assert len(running) == 9 and len(page.styles) == 2
    rules = dict(rule.split(" ", 1) for rule in page.policy.split("; "))
    assert rules["default-src"] == "'none'" and "connect-src" not in rules
    assert rules["script-src"].split() == [sha(text) for text in running]
    assert rules["style-src"].split() == [sha(text) for text in page.styles]


def test_a_record_comes_out_as_it_went_in_whatever_it_names() -> None:
    record = synthetic.mlp(NASTY)
    page = Parts(one_file(json.dumps(record, ensure_ascii=False), title=NASTY))
    (data,) = [text for given, text in page.scripts if given.get("id") == "session"]
    assert json.loads(gzip.decompress(base64.b64decode(data))) == record
    assert data.isascii() and not set("<>&") & set(data)


def test_a_record_has_the_same_letters_every_time() -> None:
    assert as_data('"<a>"') == as_data('"<a>"')


def test_a_report_is_small() -> None:
    size = len(one_file("{}"))
    assert size < 300_000


def folder(tmp_path: Path, **files: str) -> Path:
    for name, text in files.items():
        (tmp_path / f"{name}.js").write_text(text)
    return tmp_path


def test_modules_are_joined_behind_what_they_need(tmp_path: Path) -> None:
    place = folder(
        tmp_path,
        a='import { b, c as d } from "./b.js";\nexport const e = b(d);\n',
        b="export function b(x) { return x }\nconst f = 1;\nexport { f as c };\n",
    )
    text = joined(place, "a.js")
    assert text.index('$modules["b.js"] =') < text.index('$modules["a.js"] =')
    assert 'const {b, c: d} = $modules["b.js"];' in text
    assert "return { b: b, c: f };" in text and "return { e: e };" in text
    assert not re.search(r"^\s*(import|export)\b", text, re.MULTILINE)


def test_modules_that_import_each_other_are_refused(tmp_path: Path) -> None:
    place = folder(
        tmp_path,
        a='import { b } from "./b.js";\nexport const a = 1;\n',
        b='import { a } from "./a.js";\nexport const b = 1;\n',
    )
    with pytest.raises(OptionError, match=re.escape("a.js -> b.js -> a.js")):
        joined(place, "a.js")


@pytest.mark.parametrize(
    "line", ['import * as x from "./b.js";', "export default 1;", 'import x from "x";', 'export * from "./b.js";']
)
def test_other_forms_of_modules_are_refused(tmp_path: Path, line: str) -> None:
    with pytest.raises(OptionError, match="cannot be joined"):
        joined(folder(tmp_path, a=line + "\n", b="\n"), "a.js")


def test_a_script_with_an_end_tag_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="end tag"):
        joined(folder(tmp_path, a='const a = "</script>";\n'), "a.js")


def test_every_module_is_part_of_the_page_and_says_its_job() -> None:
    place = static()
    assert isinstance(place, Path)
    text = joined(place, "app.js")
    for path in sorted(place.glob("*.js")):
        own = path.read_text(encoding="utf-8")
        assert own.startswith("/**"), path.name
        assert path.name == "before.js" or f'$modules["{path.name}"]' in text, path.name
        assert len(own.splitlines()) < 400, path.name


def test_no_module_makes_markup_of_texts() -> None:
    place = static()
    assert isinstance(place, Path)
    for path in place.glob("*.js"):
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacent|document\.write|dangerously|\beval\b|new Function", path.read_text()
        ), path.name
