"""The waiting line: order, and the counts by length that predictions are made of."""

from __future__ import annotations

from corelane.engine.line import Line
from corelane.engine.ticket import Ticket
from support.runtimes import row


def line_of(*lengths):
    line = Line([4, 16])
    tickets = [Ticket([row(*range(1, length + 1))]) for length in lengths]
    for ticket in tickets:
        line.add(ticket)
    return line, tickets


def test_rows_are_counted_by_the_shortest_length_that_holds_them():
    line, _ = line_of(1, 4, 5, 16)
    assert line.counts == {4: 2, 16: 2}


def test_taking_the_head_and_putting_some_back_keeps_order_and_counts():
    line, tickets = line_of(1, 5, 2, 6)
    head = line.head(3)
    line.put_back(head[1:])
    assert [ticket for ticket, _ in line] == tickets[1:]
    assert line.counts == {4: 1, 16: 2}


def test_dropped_tickets_leave_with_all_their_rows():
    line, tickets = line_of(1, 5, 2)
    line.drop([tickets[1], tickets[2]])
    assert [ticket for ticket, _ in line] == [tickets[0]]
    assert line.counts == {4: 1, 16: 0}


def test_clearing_gives_everything_out():
    line, tickets = line_of(1, 5)
    assert [ticket for ticket, _ in line.clear()] == tickets
    assert len(line) == 0
    assert line.counts == {4: 0, 16: 0}
