"""Images behind a library are found again, and what is none is told of."""

from __future__ import annotations

from pathlib import Path

import pytest

from dcir.errors import ArtefactInvalid
from dcir.kernel_images import architecture_for, image_name, images_of, is_architecture, with_images

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


@pytest.mark.parametrize(("capability", "made", "found"), [
    ((8, 0), ["sm_80", "sm_90a"], "sm_80"),
    ((8, 6), ["sm_80", "sm_90a"], "sm_80"),
    ((8, 9), ["sm_80", "sm_86"], "sm_86"),
    ((9, 0), ["sm_80", "sm_90", "sm_90a"], "sm_90a"),
    ((9, 0), ["sm_80"], None),
    ((8, 0), ["sm_86"], None),
    ((10, 3), ["sm_100a"], None),
    ((10, 3), ["sm_100", "sm_90"], "sm_100"),
    ((12, 0), [], None),
])  # fmt: skip
def test_which_code_a_gpu_runs(capability: tuple[int, int], made: list[str], found: str | None) -> None:
    assert architecture_for(capability, made) == found


def test_names_of_architectures() -> None:
    assert all(map(is_architecture, ("sm_80", "sm_90a", "sm_103")))
    assert not any(map(is_architecture, ("", "sm_", "sm_8", "sm_90b", "sm_90a ", "compute_90", "../sm_90", "sm_080")))
    assert image_name("sm_90a", "k_1") == "sm_90a/k_1"
