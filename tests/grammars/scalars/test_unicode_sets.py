"""Named character sets against unicodedata, re and the regex package over all code points."""

from __future__ import annotations

import re
import unicodedata

import pytest

from agentkit.grammars.frontends import unicode_sets as us
from agentkit.grammars.frontends.chars import LAST, CharSet

CHARACTERS = "".join(map(chr, range(LAST + 1)))


def members(chars: CharSet) -> set[int]:
    return {c for lo, hi in chars.ranges for c in range(lo, hi + 1)}


def test_categories_are_those_of_unicodedata():
    kinds = {kind: us.category(kind) for kind in {unicodedata.category(c) for c in CHARACTERS}}
    assert sum(chars.size for chars in kinds.values()) == LAST + 1
    for kind, chars in kinds.items():
        assert all(unicodedata.category(chr(c)) == kind for lo, hi in chars.ranges for c in range(lo, hi + 1))
    assert us.category("L") == kinds["Lu"] | kinds["Ll"] | kinds["Lt"] | kinds["Lm"] | kinds["Lo"]


@pytest.mark.parametrize("letter", "dws")
def test_python_classes_are_those_of_re(letter):
    assert members(us.python_class(letter)) == {m.start() for m in re.finditer(f"\\{letter}", CHARACTERS)}


def test_ecma_classes():
    spaces = us.ecma_class("s")
    assert all(c in spaces for c in "\t\n\v\f\r \xa0\u1680\u2003\u2028\u2029\u202f\u205f\u3000\ufeff")
    assert not any(c in spaces for c in "\x85\x1c\u200b\u180e")
    assert spaces & us.category("Zs") == us.category("Zs")
    assert members(us.ecma_class("d")) == set(b"0123456789")


@pytest.mark.parametrize("name", ["Script=Greek", "Script=Latin", "Script=Han", "Script=Cyrillic", "White_Space", "Emoji", "Alphabetic", "XID_Continue"])
def test_scripts_and_properties_are_those_of_the_regex_package(name):
    regex = pytest.importorskip("regex")
    assert members(us.unicode_property(name)) == {ord(m[0]) for m in regex.finditer(rf"\p{{{name}}}", CHARACTERS)}


def test_property_names():
    assert us.unicode_property("Lu") == us.unicode_property("gc=Uppercase_Letter") == us.unicode_property("General_Category=Lu")
    assert us.unicode_property("sc=Grek") == us.unicode_property("Greek")
    assert us.unicode_property("digit") == us.unicode_property("Nd")
    assert us.unicode_property("ASCII").size == 128
    assert (us.unicode_property("Any") - us.unicode_property("Assigned")) == us.category("Cn")
    for unknown in ("Foo", "Script=Foo", "gc=Foo", "", "foo=bar"):
        with pytest.raises(KeyError):
            us.unicode_property(unknown)
    with pytest.raises(ValueError, match="scx"):
        us.unicode_property("scx=Greek")


def test_ignoring_case_agrees_with_re():
    cased = "".join(chr(c) for c in range(0x20000) if us.ignore_case(CharSet.of(c)).size > 1)
    assert len(cased) > 2500
    assert all(us.ignore_case(CharSet.of(c)).size == 1 for c in "1_-中İı")
    for char in cased[::40]:
        if char not in "iI":  # Python's re also takes the dotted capital and the dotless small i
            assert members(us.ignore_case(CharSet.of(char))) == {ord(m[0]) for m in re.finditer(re.escape(char), cased, re.IGNORECASE)}, char
