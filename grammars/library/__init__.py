"""Ready-made grammars as Lark text, to use as they are or to start from: `Grammar.from_lark(library.load("json"))`.

    json         JSON texts (RFC 8259), nothing about their values
    sql          one SELECT statement in the common core of SQL, as SQLite reads it
    arithmetic   numbers, + - * / // % **, signs and parentheses, as Python reads them
    python       one Python expression: names, literals, operators, calls, attributes, subscripts, comprehensions

Knows nothing of how a grammar is compiled.
"""

from __future__ import annotations

from importlib.resources import files

from agentkit.errors import InvalidGrammar

__all__ = ["NAMES", "load"]

NAMES = ("arithmetic", "json", "python", "sql")


def load(name: str) -> str:
    """The Lark text of a grammar of the library; its first rule is `start`.

    Raises InvalidGrammar for a name that is not in NAMES.
    """
    if name not in NAMES:
        raise InvalidGrammar(f"the library has no grammar {name!r}; it has {', '.join(NAMES)}")
    return files(__name__).joinpath(f"{name}.lark").read_text(encoding="utf-8")
