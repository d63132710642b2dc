"""What became of each keyword of a schema: enforced, irrelevant because it is an annotation, or unknown and likely a misspelt one.

Input: the schemas that a front end visited, with their JSON pointers. A keyword that cannot be enforced exactly is never
reported here, it raises `UnsupportedSchema` while compiling. This module knows nothing of how keywords are enforced.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, Literal, NamedTuple, cast

Status = Literal["enforced", "irrelevant", "unknown"]

ALIKE = 0.8  # share of letters that two names have in common, in order, for one to be taken for the other
SHORT = 5  # letters; many words are like a shorter name


class Entry(NamedTuple):
    """One keyword at one place.

    pointer: JSON pointer of the keyword itself, such as "#/properties/a/minimum".
    keyword: its name.
    status:  "enforced" (every output obeys it), "irrelevant" (it says nothing about which values are valid), or "unknown": as
             irrelevant, but its name is nearly that of a keyword.
    note:    why it is irrelevant, where that is not plain; of an unknown one, the keyword that may be meant.
    """

    pointer: str
    keyword: str
    status: Status
    note: str = ""


class Report:
    """Keyword by keyword, in the order in which the schema was read. Places that nothing refers to are not listed.

    Iterating yields `Entry` objects; `str()` gives a table. `report["#/properties/a/minimum"]` is one entry.
    """

    def __init__(self, binding: Mapping[str, int] | None = None, annotations: Container[str] = ()) -> None:
        """binding: the keywords that say which values are valid; annotations: other names that are spelled right."""
        self._binding = binding or {}
        self._annotations = annotations
        self._visited: dict[str, tuple[str, ...]] = {}
        self._notes: dict[str, str] = {}
        self._overridden: set[str] = set()
        self._parts: list[tuple[str, Report]] = []
        self._restored: dict[str, Entry] = {}
        self._entries: dict[str, Entry] | None = None

    @classmethod
    def restored(cls, entries: Iterable[Sequence[str]]) -> Report:
        """From (pointer, keyword, status, note) of each entry, in order.

        Raises:
            ValueError: an entry is not of this form.
        """
        report = cls()
        table: dict[str, Entry] = {}
        for pointer, keyword, status, note in entries:
            if status not in ("enforced", "irrelevant", "unknown"):
                raise ValueError(f"{pointer}: {status!r} is not a status")
            table[pointer] = Entry(pointer, keyword, cast(Status, status), note)
        report._restored = table
        return report

    def visit(self, pointer: str, schema: Mapping[str, Any]) -> None:
        """The schema at `pointer` is part of the grammar."""
        self._visited[pointer] = tuple(schema)

    def irrelevant(self, pointer: str, note: str) -> None:
        """The keyword at `pointer` turned out to be an annotation (an unknown format, say)."""
        self._notes[pointer] = note

    def beside_reference(self, pointer: str) -> None:
        """Up to draft-07 a `$ref` hides all keywords beside it."""
        self._overridden.add(pointer)

    def add(self, other: Report, prefix: str = "") -> None:
        """Takes over another report, which is complete, its pointers behind `prefix` (a tool's name, say)."""
        self._parts.append((prefix, other))
        self._entries = None

    def _table(self) -> dict[str, Entry]:
        if self._entries is None:
            self._entries = dict(self._restored)
            for place, keywords in self._visited.items():
                for keyword in keywords:
                    pointer = f"{place}/{keyword.replace('~', '~0').replace('/', '~1')}"
                    status, note = self._judge(place, keyword, pointer)
                    self._entries[pointer] = Entry(pointer, keyword, status, note)
            for prefix, part in self._parts:
                self._entries.update((prefix + pointer, Entry(prefix + pointer, *entry[1:])) for pointer, entry in part._table().items())
        return self._entries

    def _judge(self, place: str, keyword: str, pointer: str) -> tuple[Status, str]:
        if place in self._overridden and keyword != "$ref":
            return "irrelevant", "hidden by $ref up to draft-07"
        if pointer in self._notes:
            return "irrelevant", self._notes[pointer]
        if keyword in self._binding:
            return "enforced", ""
        meant = None if keyword in self._annotations else _nearest(keyword, tuple(self._binding))
        return ("unknown", f"did you mean {meant!r}?") if meant else ("irrelevant", "")

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._table().values())

    def __len__(self) -> int:
        return len(self._table())

    def __getitem__(self, pointer: str) -> Entry:
        return self._table()[pointer]

    def __contains__(self, pointer: object) -> bool:
        return pointer in self._table()

    @property
    def enforced(self) -> tuple[Entry, ...]:
        return tuple(e for e in self if e.status == "enforced")

    @property
    def irrelevant_entries(self) -> tuple[Entry, ...]:
        return tuple(e for e in self if e.status == "irrelevant")

    @property
    def unknown(self) -> tuple[Entry, ...]:
        """What may be misspelt."""
        return tuple(e for e in self if e.status == "unknown")

    def __str__(self) -> str:
        if not len(self):
            return "no keywords: any JSON value"
        width = max(len(e.pointer) for e in self)
        lines = [f"{e.pointer:<{width}}  {e.status}" + (f" ({e.note})" if e.note else "") for e in self]
        return "\n".join(lines)

    def __repr__(self) -> str:
        unknown = f", {len(self.unknown)} unknown" if self.unknown else ""
        return f"<Report: {len(self.enforced)} enforced, {len(self.irrelevant_entries)} irrelevant{unknown}>"


@lru_cache(maxsize=1024)
def _nearest(name: str, known: tuple[str, ...]) -> str | None:
    """The known name that is most like `name`, whatever the case and the marks between words; None if none is."""
    letters = {_letters(other): other for other in known}
    if _letters(name) in letters:
        return letters[_letters(name)]
    found = get_close_matches(_letters(name), [other for other in letters if len(other) >= SHORT], 1, ALIKE)
    return letters[found[0]] if found else None


def _letters(name: str) -> str:
    return "".join(c for c in name.lower() if c not in "$_- ")
