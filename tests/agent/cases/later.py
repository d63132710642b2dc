"""Behaviour statements of the sdk cases whose feature comes later: (case id, statement) -> what it waits for."""

from __future__ import annotations

LATER: dict[tuple[str, str], str] = {
    ("sdk-usage-last-chunk", "usage is 2/1/3"): "remote servers: usage is read from a server's last chunk",
}
