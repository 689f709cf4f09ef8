"""Images behind a library are found again, and what is none is told of."""

from __future__ import annotations

from pathlib import Path

import pytest

from dcir.errors import ArtefactInvalid
from dcir.kernel_images import images_of, with_images

IMAGES = {"k_1": b"\x7fELF one", "k_2": bytes(range(200))}


def test_images_come_back(tmp_path: Path) -> None:
    path = tmp_path / "library.so"
    path.write_bytes(with_images(b"library", IMAGES))
    assert images_of(path) == IMAGES
    assert path.read_bytes().startswith(b"library")


def test_the_same_images_are_the_same_bytes() -> None:
    assert with_images(b"library", IMAGES) == with_images(b"library", dict(IMAGES))


def test_a_library_without_images_has_none(tmp_path: Path) -> None:
    path = tmp_path / "library.so"
    path.write_bytes(b"library")
    assert images_of(path) == {}


def test_a_damaged_table_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "library.so"
    whole = bytearray(with_images(b"library", IMAGES))
    whole[whole.index(b'{"k_1"')] = ord("x")
    path.write_bytes(whole)
    with pytest.raises(ArtefactInvalid, match="images of a library cannot be read"):
        images_of(path)
