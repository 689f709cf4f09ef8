"""Fetches the scripts of others that the page of `dcir view` and its tests use, as vendor.json names them, and writes down their SHA-256.

A version is changed in vendor.json by hand; `make vendor` then brings its files from npm. Needs npm; nothing is installed or run.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FOLDERS = (ROOT / "dcir" / "view" / "static" / "vendor", ROOT / "tests" / "view" / "vendor")


def packed(package: str, version: str, folder: Path) -> Path:
    """The archive of a package, as npm has it."""
    done = subprocess.run(
        ["npm", "pack", "--silent", f"{package}@{version}"], cwd=folder, check=True, capture_output=True, text=True
    )
    return folder / done.stdout.split()[-1]


def content(entry: dict[str, Any], archive: Path) -> bytes:
    """What an entry says of its package: one file, in which a name may stand for another (browsers know no packages)."""
    with tarfile.open(archive) as opened:
        found = opened.extractfile(f"package/{entry['from']}")
        if found is None:
            raise SystemExit(f"{entry['package']} {entry['version']} has no file {entry['from']}")
        data = found.read()
    if "replaced" in entry:
        old, new = (text.encode() for text in entry["replaced"])
        if old not in data:
            raise SystemExit(f"{entry['from']} of {entry['package']} has no {entry['replaced'][0]}")
        data = data.replace(old, new)
    return data


def refresh(folder: Path) -> None:
    """Fetch what one folder holds; its table is written again with the sums."""
    entries = json.loads((folder / "vendor.json").read_text())
    with tempfile.TemporaryDirectory() as scratch:
        wanted = dict.fromkeys((e["package"], e["version"]) for e in entries)
        archives = {key: packed(*key, Path(scratch)) for key in wanted}
        for entry in entries:
            data = content(entry, archives[entry["package"], entry["version"]])
            (folder / entry["file"]).write_bytes(data)
            entry["sha256"] = hashlib.sha256(data).hexdigest()
    (folder / "vendor.json").write_text("[\n" + ",\n".join(f"  {json.dumps(e)}" for e in entries) + "\n]\n")


if __name__ == "__main__":
    for folder in FOLDERS:
        refresh(folder)
