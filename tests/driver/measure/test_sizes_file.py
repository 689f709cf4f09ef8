"""A list of sizes is a line for each call, or JSON; what is none is refused, with its place."""

import pytest

from dcir.driver.measure.sizes_file import read_sizes
from dcir.errors import InvalidInput


@pytest.mark.parametrize(
    "text",
    ["b=4 s=37\nb=1 s=2\n", "# two calls\n\nb=4, s=37  # long\nb=1,s=2", '[{"b": 4, "s": 37}, {"s": 2, "b": 1}]'],
)
def test_lists(tmp_path, text):
    (tmp_path / "sizes").write_text(text)
    assert read_sizes(tmp_path / "sizes") == [{"b": 4, "s": 37}, {"b": 1, "s": 2}]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "lists no sizes"),
        ("# b=4", "lists no sizes"),
        ("[]", "lists no sizes"),
        ("b=4\nb=x", "no list of sizes"),
        ("b=4\nc=4", "call 2 names c, the first one b"),
        ("b=-4", "no list of sizes"),
        ("b=__import__('os')", "no list of sizes"),
        ("b=4 b", "no list of sizes"),
        ("b=4 b=5", "no list of sizes"),
        ("b=9999999999999", "no list of sizes"),
        ("[1]", "no object"),
        ("[{}]", "no object"),
        ('[{"b": true}]', "no object"),
        ('[{"b": -1}]', "no object"),
        ("[" * 100000, "no JSON"),
        ("[{", "no JSON"),
        (b"\xff\xfe", "no text"),
    ],
)
def test_what_is_no_list(tmp_path, text, message):
    path = tmp_path / "sizes"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InvalidInput, match=message) as caught:
        read_sizes(path)
    assert str(path) in str(caught.value)


def test_no_file(tmp_path):
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(InvalidInput, match="no such file"):
            read_sizes(path)
