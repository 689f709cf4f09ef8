"""Machine code of GPU kernels behind the end of a shared library: one file, which the cache's digest covers as a whole.

    library | image | image | ... | table (JSON: name -> [offset, bytes]) | length of the table (8 bytes) | MARK

A loader of shared libraries reads what their headers name and nothing behind it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from dcir.errors import ArtefactInvalid

_MARK = b"dcir kernel images 1\n"
_ALIGNMENT = 64


def with_images(library: bytes, images: Mapping[str, bytes]) -> bytes:
    """A library with images behind it, by the names of their kernels."""
    made = bytearray(library)
    table: dict[str, tuple[int, int]] = {}
    for name, image in images.items():
        made += bytes(-len(made) % _ALIGNMENT)
        table[name] = len(made), len(image)
        made += image
    rows = json.dumps(table, sort_keys=True).encode()
    return bytes(made + rows + len(rows).to_bytes(8, "little") + _MARK)


def images_of(path: Path) -> dict[str, bytes]:
    """The images behind a library; none of one that has been linked and nothing else.

    Raises:
        ArtefactInvalid: what stands there is no table of images.
    """
    data = path.read_bytes()
    if not data.endswith(_MARK):
        return {}
    end = len(data) - len(_MARK) - 8
    length = int.from_bytes(data[end : end + 8], "little")
    try:
        table = json.loads(data[end - length : end])
        return {str(name): data[offset : offset + size] for name, (offset, size) in table.items()}
    except (ValueError, TypeError, AttributeError) as e:
        raise ArtefactInvalid("the images of a library cannot be read", where=str(path)) from e
