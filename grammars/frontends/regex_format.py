"""The format `regex`: regular expressions that Python's `re` and ECMA-262 (flag u) both take, as a pattern over their texts.

What is less than either: groups nest at most three deep and have no names, look-ahead stands outside of them, a class holds ranges of
digits or of ASCII letters only, counts have at most three digits and two of them at most one each; no look-behind, no back-references,
no \\p{...}.
Knows nothing of what an expression matches.
"""

from __future__ import annotations

__all__ = ["regex_pattern"]

_DEPTH = 3
_SYNTAX = r"\\^$.*+?()\[\]{}|"  # characters that stand for something
_NUMBERED = r"x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}"
_ESCAPE = rf"\\(?:[dDwWsSfnrtv/{_SYNTAX}]|{_NUMBERED})"
_ASSERTION = r"[\^$]|\\[bB]"  # nothing repeats these


def _ordered(signs: str) -> str:
    """`a-b` with a not after b, over consecutive characters."""
    return "|".join(f"{first}-[{first}-{signs[-1]}]" for first in signs)


def _class() -> str:
    """[...] or [^...]: at least one item, a hyphen only first or last."""
    ranges = "|".join(map(_ordered, ("0123456789", _letters("a"), _letters("A"))))
    item = rf"(?:{ranges}|[^\\\]\[\^\-&~|]|\\(?:[dDwWsSfnrtv/\-{_SYNTAX}]|{_NUMBERED}))"
    return rf"\[\^?(?:-{item}*|{item}+-?)\]"


def _letters(first: str) -> str:
    return "".join(chr(ord(first) + i) for i in range(26))


def _count() -> str:
    pairs = "|".join(f"{low},[{low}-9]" for low in range(10))
    return rf"(?:[*+?]|\{{(?:\d{{1,3}},?|{pairs})\}})\??"


def regex_pattern() -> str:
    """A pattern, in the ecma dialect, of whole texts."""
    atom = rf"[^{_SYNTAX}]|{_ESCAPE}|{_class()}|\."
    inside = rf"(?:(?:{atom})(?:{_count()})?|{_ASSERTION}|\|)*"
    for _ in range(_DEPTH - 1):
        inside = rf"(?:(?:{atom}|\((?:\?:)?{inside}\))(?:{_count()})?|{_ASSERTION}|\|)*"
    return rf"(?:(?:{atom}|\((?:\?:)?{inside}\))(?:{_count()})?|{_ASSERTION}|\(\?[=!]{inside}\)|\|)*"
