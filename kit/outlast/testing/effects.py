import os
from pathlib import Path


class EffectsLog:
    """Record real side effects in a file that outlives the process which had them.

    Each entry is one line, written by one `write` to a file opened for appending, so a process killed at
    any moment leaves whole entries and several processes may share the file. Safe against SIGKILL, not
    against a power cut.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def append(self, entry: str) -> None:
        """Add one entry; it is in the file when this returns. Raise ValueError for text with a line break."""
        if "\n" in entry:
            raise ValueError("an effect is one line of text")
        line = f"{entry}\n".encode()
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            written = os.write(descriptor, line)
        finally:
            os.close(descriptor)
        if written != len(line):
            raise OSError(f"only {written} of {len(line)} bytes of an effect fitted into {self.path}")

    def read(self) -> list[str]:
        """Return every entry in the order in which it happened; empty before the first."""
        if not self.path.exists():
            return []
        return self.path.read_text("utf-8").split("\n")[:-1]
