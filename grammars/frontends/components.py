"""Strongly connected components of a graph (Tarjan 1972), without recursion. Knows nothing of grammars."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import TypeVar

N = TypeVar("N", bound=Hashable)


def components(nodes: Iterable[N], following: Callable[[N], Iterable[N]]) -> list[list[N]]:
    """Components in an order in which edges lead to the same or an earlier one. Edges out of `nodes` are ignored."""
    members = dict.fromkeys(nodes)
    number: dict[N, int] = {}
    low: dict[N, int] = {}
    open_: dict[N, None] = {}
    out: list[list[N]] = []
    for root in members:
        if root in number:
            continue
        number[root] = low[root] = len(number)
        open_[root] = None
        work: list[tuple[N, Iterator[N]]] = [(root, iter(following(root)))]
        while work:
            node, edges = work[-1]
            for other in edges:
                if other not in members:
                    continue
                if other not in number:
                    number[other] = low[other] = len(number)
                    open_[other] = None
                    work.append((other, iter(following(other))))
                    break
                if other in open_:
                    low[node] = min(low[node], number[other])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == number[node]:
                    part: list[N] = []
                    while not part or part[-1] != node:
                        part.append(open_.popitem()[0])
                    out.append(part)
    return out
