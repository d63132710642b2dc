"""Grammars of the kind of a programming language, and texts of some length in them. Knows nothing of agentkit but the library's texts."""

from __future__ import annotations

from pathlib import Path

from agentkit.grammars import library

LANGUAGES = Path(__file__).parent / "languages"
NAMES = (*library.NAMES, "calc", "lua", "statements")

LONG = {
    "arithmetic": " + ".join(f"({i} * -3.5 // 4 % (7 - {i}) ** 2)" for i in range(30)),
    "json": "[" + ", ".join(f'{{"name": "item {i}", "values": [{i}, 1.5e3, null], "more": {{"x": "y"}}}}' for i in range(16)) + "]",
    "python": "[" + ", ".join(f"f{i}(x.y[{i}:], 'a {i}', key=not z) + {{1: 2, 'k': [a for a in b if a]}}['k'][0]" for i in range(14)) + "]",
    "sql": "SELECT "
    + ", ".join(f"t{i}.a AS n{i}, count(DISTINCT x{i}) + 1" for i in range(14))
    + " FROM users AS u LEFT JOIN orders o ON u.id = o.u WHERE "
    + " AND ".join(f"(c{i} > {i} OR d LIKE 'it''s {i}%')" for i in range(14))
    + " ORDER BY 1 DESC",
    "calc": "total = " + " - ".join(f"(1.5 + x{i}) * -3 / foo" for i in range(25)),
    "lua": "\n".join(
        f"""local function f{i}(a, ...)
  -- the {i}th
  if a ~= nil and #a > {i} then return a.x["y"]:z({i}, "s") .. 't' else for i = 1, 10 do g{{1, x = 2; [3] = 4}} end end
end
print(f{i}({i}) + 2 ^ -3)"""
        for i in range(5)
    ),
    "statements": " ".join(
        f"""def f{i}(x, y) {{ if x > {i} and not y.z[1]: return g(x, k=2) ** -{i} }};
x{i} = lambda a: a if a is not None else [{i}, "two", 3]; # done
for i in f{i}(1): print(i)"""
        for i in range(5)
    ),
}


def source(name: str) -> str:
    """The Lark text of a grammar."""
    return library.load(name) if name in library.NAMES else (LANGUAGES / f"{name}.lark").read_text(encoding="utf-8")
