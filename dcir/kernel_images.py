"""Machine code of GPU kernels behind the end of a shared library: one file, which the cache's digest covers as a whole.

    library | image | image | ... | table (JSON: name -> [offset, bytes]) | length of the table (8 bytes) | MARK

A loader of shared libraries reads what their headers name and nothing behind it. An image's name is its architecture and its kernel's name
("sm_90a/k_1").
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from dcir.errors import ArtefactInvalid

_MARK = b"dcir kernel images 1\n"
_ALIGNMENT = 64
_ARCHITECTURE = re.compile(r"sm_([1-9]\d*)(\d)(a?)")


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


def image_name(arch: str, kernel: str) -> str:
    """The name of a kernel's image for an architecture."""
    return f"{arch}/{kernel}"


def is_architecture(name: str) -> bool:
    """Whether a name is that of a GPU's architecture as NVRTC has them ("sm_80", "sm_90a")."""
    return _ARCHITECTURE.fullmatch(name) is not None


def architecture_for(capability: tuple[int, int], made: Iterable[str]) -> str | None:
    """The architecture whose machine code a GPU runs, of those that there is code for; None if there is none.

    Code for "sm_90a" runs on that compute capability alone; any other on those of the same first number that are not lower
    (CUDA C++ Programming Guide, "Binary compatibility").

    Args:
        capability: major and minor number of the GPU's compute capability.
        made: architectures with code.
    """
    fitting = []
    for name in made:
        found = _ARCHITECTURE.fullmatch(name)
        if found is None or int(found[1]) != capability[0]:
            continue
        minor, exact = int(found[2]), bool(found[3])
        if minor == capability[1] or (minor < capability[1] and not exact):
            fitting.append((minor, exact, name))
    return max(fitting)[2] if fitting else None
