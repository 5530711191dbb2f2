"""What an installed outlast promises to those who only import it, and what the repository must not contain."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

NOT_FOR_EVERYBODY = ("agents", "langchain_core", "langgraph", "psycopg", "uvicorn")

# Written with classes so that this file does not match itself.
NOT_TRACKED = re.compile(
    r"[p]ypi\.(?:org|python)|[f]iles\.pythonhosted|[a]rtifactory|/(?:[h]ome|[r]oot|[U]sers)/\w|[i]ndex-url", re.ASCII
)

needs_checkout = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="looks at a git checkout")


def tracked_texts() -> dict[str, str]:
    """Return the text files that are tracked or would be by `git add .`, by name."""
    listed = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    texts = {}
    for name in filter(None, listed.stdout.split("\0")):
        path = ROOT / name
        if path.is_file() and b"\0" not in (content := path.read_bytes()):
            texts[name] = content.decode("utf-8")
    return texts


def test_import_loads_no_framework_driver_or_web_server() -> None:
    """Whoever imports outlast pays for what they use, and may lack every optional package."""
    code = f"import sys; from outlast import *; print(*(set({NOT_FOR_EVERYBODY!r}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == []


def test_a_name_is_imported_when_it_is_asked_for() -> None:
    """The command line starts at once, and a client needs neither a server nor a database."""
    code = (
        "import sys, outlast; assert not {'sqlalchemy', 'fastapi', 'httpx'} & set(sys.modules); "
        "outlast.AgentClient; assert not {'sqlalchemy', 'fastapi'} & set(sys.modules); "
        "from outlast import *; assert all(name in globals() for name in outlast.__all__); "
        "assert set(outlast.__all__) == set(outlast._MODULES) <= set(dir(outlast)); outlast.missing"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.stderr.splitlines()[-1] == "AttributeError: module 'outlast' has no attribute 'missing'"


@needs_checkout
def test_constraints_pin_each_package_once() -> None:
    """Only `name==version` lines: no address, no local file, no loose pin."""
    lines = [line for line in tracked_texts()["constraints.txt"].splitlines() if not line.startswith("#")]
    pins = [re.fullmatch(r"([a-z0-9]+(?:-[a-z0-9]+)*)==[0-9][\w.]*", line) for line in lines]
    assert [line for line, pin in zip(lines, pins, strict=True) if pin is None] == []
    names = [pin[1] for pin in pins if pin is not None]
    assert names == sorted(set(names))


@needs_checkout
def test_no_tracked_file_names_a_machine_or_a_package_index() -> None:
    found = [
        f"{name}:{number}: {line.strip()}"
        for name, text in tracked_texts().items()
        for number, line in enumerate(text.splitlines(), start=1)
        if NOT_TRACKED.search(line)
    ]
    assert found == []
