"""Entries into the code of a task: a retry policy has it begin again, to do what it had done before it goes on.

What happens is counted in each entry, so that the same has the same name in the next one. The tasks of a graph that
keeps no state have the name of one place: there a task counts on from those before it.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

N = TypeVar("N")


@dataclass(eq=False, slots=True)
class Entry(Generic[N]):
    """One entry into the code at a place."""

    left: dict[str, list[N]] = field(default_factory=dict)
    """What was noted before, and the code has not asked for yet, by where it asks."""
    counts: Counter[str] = field(default_factory=Counter)

    def copy(self) -> "Entry[N]":
        return Entry({at: [*notes] for at, notes in self.left.items()}, self.counts.copy())


@dataclass(eq=False, slots=True)
class _Before(Generic[N]):
    """What a task found when it was entered first."""

    entry: Entry[N]
    noted: dict[str, int]


class Entries(Generic[N]):
    """The entries of one attempt."""

    def __init__(self) -> None:
        self._before: dict[tuple[str, str], _Before[N]] = {}
        self._under_way: dict[str, Entry[N]] = {}

    def enter(self, place: str, task: str, notes: Mapping[str, Sequence[tuple[str, N]]]) -> bool:
        """Note that a task is entered, and say whether it was before. `notes` name the tasks that made them."""
        before = self._before.get((place, task))
        if before is None:
            found = {at: [note for _, note in made] for at, made in notes.items()}
            entry = Entry(found) if place == task else self.at(place, task)
            self._before[place, task] = _Before(entry.copy(), {at: len(made) for at, made in notes.items()})
            if place == task:
                self._under_way[task] = entry
            return False
        entry = before.entry.copy()
        for at, made in notes.items():
            since = made[before.noted.get(at, 0) :]
            entry.left.setdefault(at, []).extend(note for by, note in since if is_within(by, task))
        self._under_way[task] = entry
        return True

    def leave(self, place: str, task: str) -> None:
        """Note that a task is done: the tasks after it at its place count on from it."""
        if place != task and (entry := self._under_way.pop(task, None)) is not None:
            around = self.at(place, task)
            around.counts |= entry.counts

    def at(self, place: str, task: str) -> Entry[N]:
        """Return the entry that the code of a task is in: that of the innermost task around it that has its own."""
        while task != place and task not in self._under_way:
            task = task.rpartition("|")[0]
        return self._under_way.setdefault(task, Entry())


def is_within(task: str, other: str) -> bool:
    return task == other or task.startswith(f"{other}|")
