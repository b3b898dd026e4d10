"""The waiting line of a slot: rows in the order in which they came, and how many there are of each length class.

Not safe by itself: the core's lock guards it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence

from corelane.engine.ticket import Ticket

Place = tuple[Ticket, int]  # a ticket, and the index of one of its rows


class Line:
    """`sequences` are the compiled lengths; a row belongs to the class of the shortest one that holds it."""

    def __init__(self, sequences: Sequence[int]) -> None:
        self.sequences = sorted(set(sequences))
        self.counts = dict.fromkeys(self.sequences, 0)
        self._places: deque[Place] = deque()

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Place]:
        return iter(self._places)

    def add(self, ticket: Ticket) -> None:
        """All rows of a ticket, at the end. A row longer than every compiled length is a bug in the caller."""
        for index, row in enumerate(ticket.rows):
            self.counts[self._class(row.length)] += 1
            self._places.append((ticket, index))

    def head(self, rows: int) -> list[Place]:
        """Take out the oldest rows, as many as there are up to `rows`."""
        places = [self._places.popleft() for _ in range(min(rows, len(self._places)))]
        self._count(places, -1)
        return places

    def put_back(self, places: Sequence[Place]) -> None:
        """Rows that `head` took, to the front again in their order."""
        self._places.extendleft(reversed(places))
        self._count(places, 1)

    def drop(self, tickets: Sequence[Ticket]) -> int:
        """Take out all rows of these tickets; returns how many there were."""
        gone = set(map(id, tickets))
        dropped = [place for place in self._places if id(place[0]) in gone]
        if dropped:
            self._places = deque(place for place in self._places if id(place[0]) not in gone)
            self._count(dropped, -1)
        return len(dropped)

    def clear(self) -> list[Place]:
        """Take out everything."""
        return self.head(len(self._places))

    def _class(self, length: int) -> int:
        return self.sequences[bisect_left(self.sequences, length)]

    def _count(self, places: Sequence[Place], by: int) -> None:
        for ticket, index in places:
            self.counts[self._class(ticket.rows[index].length)] += by
