"""Named sets of characters: classes of regular expressions, Unicode properties, case folding.

Input: names as regular expressions write them; output: `CharSet`s, made on first use and kept. General categories and Python's
own classes come from the running interpreter, so they agree with its `re`; scripts and binary properties from unicode_data.
"""

from __future__ import annotations

import re
import unicodedata
from functools import cache
from itertools import groupby

import numpy as np

from agentkit.grammars.frontends.chars import EVERY, LAST, SURROGATES, CharSet
from agentkit.grammars.frontends.unicode_data import PROPERTIES, SCRIPTS

ASCII_DIGITS = CharSet.of((0x30, 0x39))
ASCII_WORD = CharSet.of((0x30, 0x39), (0x41, 0x5A), (0x61, 0x7A), "_")
ASCII_SPACE = CharSet.of((9, 13), " ")
LINE_ENDS = CharSet.of("\n\r\u2028\u2029")  # ECMA-262 LineTerminator
NEWLINE = CharSet.of("\n")

_CATEGORIES = {
    "Letter": "L", "Cased_Letter": "LC", "Uppercase_Letter": "Lu", "Lowercase_Letter": "Ll", "Titlecase_Letter": "Lt", "Modifier_Letter": "Lm",
    "Other_Letter": "Lo", "Mark": "M", "Combining_Mark": "M", "Nonspacing_Mark": "Mn", "Spacing_Mark": "Mc", "Enclosing_Mark": "Me",
    "Number": "N", "Decimal_Number": "Nd", "digit": "Nd", "Letter_Number": "Nl", "Other_Number": "No", "Punctuation": "P", "punct": "P",
    "Connector_Punctuation": "Pc", "Dash_Punctuation": "Pd", "Open_Punctuation": "Ps", "Close_Punctuation": "Pe", "Initial_Punctuation": "Pi",
    "Final_Punctuation": "Pf", "Other_Punctuation": "Po", "Symbol": "S", "Math_Symbol": "Sm", "Currency_Symbol": "Sc", "Modifier_Symbol": "Sk",
    "Other_Symbol": "So", "Separator": "Z", "Space_Separator": "Zs", "Line_Separator": "Zl", "Paragraph_Separator": "Zp", "Other": "C",
    "Control": "Cc", "cntrl": "Cc", "Format": "Cf", "Surrogate": "Cs", "Private_Use": "Co", "Unassigned": "Cn",
}  # fmt: skip
_SHORT_PROPERTIES = {
    "Alpha": "Alphabetic", "AHex": "ASCII_Hex_Digit", "Bidi_C": "Bidi_Control", "CI": "Case_Ignorable", "DI": "Default_Ignorable_Code_Point",
    "Dep": "Deprecated", "Dia": "Diacritic", "EComp": "Emoji_Component", "EMod": "Emoji_Modifier", "EBase": "Emoji_Modifier_Base",
    "EPres": "Emoji_Presentation", "ExtPict": "Extended_Pictographic", "Ext": "Extender", "Gr_Base": "Grapheme_Base", "Gr_Ext": "Grapheme_Extend",
    "Hex": "Hex_Digit", "IDC": "ID_Continue", "IDS": "ID_Start", "Ideo": "Ideographic", "Join_C": "Join_Control", "LOE": "Logical_Order_Exception",
    "Lower": "Lowercase", "NChar": "Noncharacter_Code_Point", "Pat_Syn": "Pattern_Syntax", "Pat_WS": "Pattern_White_Space",
    "QMark": "Quotation_Mark", "RI": "Regional_Indicator", "STerm": "Sentence_Terminal", "SD": "Soft_Dotted", "Term": "Terminal_Punctuation",
    "UIdeo": "Unified_Ideograph", "Upper": "Uppercase", "VS": "Variation_Selector", "space": "White_Space", "XIDC": "XID_Continue",
    "XIDS": "XID_Start",
}  # fmt: skip


@cache
def _all_characters() -> str:
    return np.arange(LAST + 1, dtype="<u4").tobytes().decode("utf-32-le", "surrogatepass")


def _matching(pattern: str) -> CharSet:
    """The characters of a class of Python's `re`, found by running it over all of them."""
    return CharSet(tuple((m.start(), m.end() - 1) for m in re.finditer(f"{pattern}+", _all_characters())))


@cache
def python_class(letter: str) -> CharSet:
    """\\d, \\w or \\s of Python's `re` for str patterns."""
    return _matching("\\" + letter)


@cache
def ecma_class(letter: str) -> CharSet:
    """\\d, \\w or \\s of ECMA-262: ASCII but for white space."""
    if letter == "s":
        return CharSet.of("\t\n\v\f\r\ufeff\u2028\u2029 \xa0\u1680", (0x2000, 0x200A), "\u202f\u205f\u3000")
    return ASCII_DIGITS if letter == "d" else ASCII_WORD


@cache
def _categories() -> dict[str, CharSet]:
    runs: dict[str, list[tuple[int, int]]] = {}
    for first, last in ((0, 0x3FFFF), (0xE0000, 0xE0FFF)):  # planes 4 to 13 are unassigned, 15 and 16 private
        at = first
        for kind, run in groupby(map(unicodedata.category, _all_characters()[first : last + 1])):
            end = at + sum(1 for _ in run)
            runs.setdefault(kind, []).append((at, end - 1))
            at = end
    runs["Cn"] += [(0x40000, 0xDFFFF), (0xE1000, 0xEFFFF), (0xFFFFE, 0xFFFFF), (0x10FFFE, LAST)]
    runs["Co"] += [(0xF0000, 0xFFFFD), (0x100000, 0x10FFFD)]
    return {name: CharSet.from_ranges(ranges) for name, ranges in runs.items()}


def category(name: str) -> CharSet:
    """A general category by its short name, such as Lu, or a group: L, LC, M, N, P, S, Z, C. KeyError if there is none."""
    if name == "LC":
        return category("Lu") | category("Ll") | category("Lt")
    found = CharSet.from_ranges(r for kind, chars in _categories().items() if kind.startswith(name) for r in chars.ranges)
    if not name or not found:
        raise KeyError(name)
    return found


def _decode(text: str) -> CharSet:
    out = []
    at = 0
    for item in text.split():
        gap, _, more = item.partition("-")
        at += int(gap, 16)
        end = at + (int(more, 16) if more else 0)
        out.append((at, end))
        at = end
    return CharSet(tuple(out))


@cache
def _table(text: str) -> dict[str, str]:
    entries: dict[str, str] = {}
    for entry in text.replace("\n ", " ").splitlines():
        names, _, ranges = entry.partition(":")
        for name in names.split():
            entries[name] = ranges
    return entries


@cache
def unicode_property(expression: str) -> CharSet:
    """What \\p{expression} matches (ECMA-262 section 22.2.2.9 and UTS 18): `Lu`, `Script=Greek`, `Alphabetic`, `Greek` ...

    KeyError for a name that does not exist, ValueError for one that exists but is not known here (Script_Extensions).
    """
    name, equals, value = expression.partition("=")
    if equals:
        if name in ("General_Category", "gc"):
            return category(_CATEGORIES.get(value, value))
        if name in ("Script", "sc"):
            return _decode(_table(SCRIPTS)[value])
        if name in ("Script_Extensions", "scx"):
            raise ValueError(expression)
        raise KeyError(expression)
    if name in ("Any", "ASCII", "Assigned"):
        return EVERY if name == "Any" else CharSet.of((0, 0x7F)) if name == "ASCII" else ~category("Cn")
    name = _SHORT_PROPERTIES.get(name, name)
    for table in (PROPERTIES, SCRIPTS):
        if name in _table(table):
            return _decode(_table(table)[name])
    return SURROGATES if name in ("Cs", "Surrogate") else category(_CATEGORIES.get(name, name))


def _fold(char: str) -> str:
    """Simple case folding (CaseFolding.txt, status C and S)."""
    folded = char.casefold()
    if len(folded) != 1:
        folded = char.lower()
    return folded if len(folded) == 1 else char


@cache
def _case_classes() -> dict[int, tuple[int, ...]]:
    """For each character that equals others when case is ignored: all of them."""
    groups: dict[str, set[int]] = {}
    for lo, hi in ((0, 0x33FF), (0xA000, 0xABFF), (0xF900, 0x1FFFF)):  # no case in the ideographs between
        for char in _all_characters()[lo : hi + 1]:
            folded = _fold(char)
            if folded != char:
                groups.setdefault(folded, {ord(folded)}).add(ord(char))
    return {c: tuple(sorted(members)) for members in groups.values() for c in members}


@cache
def ignore_case(chars: CharSet) -> CharSet:
    """The set and every character that differs from a member only by case (simple folding)."""
    classes = _case_classes()
    members = (c for lo, hi in chars.ranges for c in range(lo, hi + 1)) if chars.size < len(classes) else filter(chars.__contains__, classes)
    extra = [(o, o) for c in members if c in classes for o in classes[c]]
    return CharSet.from_ranges((*chars.ranges, *extra))
