"""Fail when the wheel lacks a file of the source roots.

The editable install cannot show this: a package missing from the build's list, or a file that .gitignore matches,
is still importable from the source tree.
"""

import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE_ROOTS = ("kit", "integrations", "templates")
CACHES = {"__pycache__", ".ruff_cache"}


def source_files() -> set[str]:
    return {
        path.relative_to(ROOT / source_root).as_posix()
        for source_root in SOURCE_ROOTS
        for path in (ROOT / source_root).rglob("*")
        if path.is_file() and not CACHES & set(path.parts)
    }


def main() -> None:
    with zipfile.ZipFile(sys.argv[1]) as wheel:
        shipped = set(wheel.namelist())
    missing = sorted(source_files() - shipped)
    untyped = sorted(
        package
        for package in {name.split("/")[0] for name in shipped if ".dist-info/" not in name}
        if f"{package}/py.typed" not in shipped
    )
    if missing or untyped:
        sys.exit(f"The wheel lacks {missing or 'no file'}; packages without py.typed: {untyped or 'none'}.")
    print(f"The wheel holds all {len(source_files())} source files.")


if __name__ == "__main__":
    main()
