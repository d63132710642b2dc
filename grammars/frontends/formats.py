"""String formats: JSON Schema 2020-12 and those that Pydantic adds, as syntax trees over code points.

Input: a format's name; output: a `Format` (what is enforced) or None (an annotation: unknown, or nothing to check in the text).
The texts are those that the RFCs allow *and* the usual validators take (jsonschema's checkers, Pydantic), because what is
generated is validated afterwards. Where that is less than the RFC, `exact` is False: such a format can be asked for, but its
complement (`not: {format: ...}`) is only offered where `widest` says what no reader at all takes for one: between the two are texts
that some take and others do not, and neither the format nor its complement has those. The choices are in docs/formats.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from agentkit.grammars.frontends.regex_ast import Tree
from agentkit.grammars.frontends.regex_format import regex_pattern
from agentkit.grammars.frontends.regex_parser import parse


@dataclass(frozen=True)
class Format:
    """pattern: the whole text, in the ecma dialect. max_length: in characters. exact: the complement is right as well.

    widest: whole texts, at least all that anyone takes for the format; where it is given, other texts are surely not of the format.
    """

    pattern: str
    max_length: int | None = None
    exact: bool = True
    widest: str | None = None

    def tree(self) -> Tree:
        return _tree(self.pattern)

    def widest_tree(self) -> Tree:
        """What the complement leaves out."""
        return _tree(self.pattern if self.widest is None else self.widest)


@cache
def _tree(pattern: str) -> Tree:
    return parse(pattern, "ecma")


# -- dates and times (RFC 3339, ISO 8601 durations of its appendix A) ----------------------------------------------

_YEAR = r"(?:[1-9]\d{3}|0[1-9]\d\d|00[1-9]\d|000[1-9])"  # year 0000 exists in RFC 3339, but in no Python date
_LEAP_YEAR = r"(?:\d\d(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DATE = rf"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|02-(?:0[1-9]|1\d|2[0-8]))|{_LEAP_YEAR}-02-29)"
_CLOCK = r"(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{1,9})?"  # no leap seconds, at most nanoseconds
_OFFSET = r"(?:[Zz]|[+-](?:[01]\d|2[0-3]):[0-5]\d)"
_TIME = _CLOCK + _OFFSET
_N = r"\d{1,6}"
_HOURS = rf"(?:{_N}H(?:{_N}M(?:{_N}S)?)?|{_N}M(?:{_N}S)?|{_N}S)"
_DAYS = rf"(?:{_N}Y(?:{_N}M(?:{_N}D)?)?|{_N}M(?:{_N}D)?|{_N}D)"
_TIMEDELTA = rf"P(?:{_N}W|(?:{_N}D)?(?:T(?:{_N}H)?(?:{_N}M)?{_N}(?:\.\d{{1,6}})?S|T(?:{_N}H)?{_N}M|T{_N}H)|{_N}D)"
_DURATION = rf"P(?:{_DAYS}(?:T{_HOURS})?|T{_HOURS}|{_N}W)"

# -- addresses (RFC 1123, 5321, 5952's superset 4291, 3986) --------------------------------------------------------

# 1 to 63 letters, digits and inner hyphens, but not xx--label: those are reserved (RFC 5891), and punycode is not checked
_HOST_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9]?|[A-Za-z0-9-](?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,59}[A-Za-z0-9])?|-[A-Za-z0-9](?:[A-Za-z0-9-]{0,58}[A-Za-z0-9])?))"
_OCTET = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_IPV4 = rf"{_OCTET}(?:\.{_OCTET}){{3}}"
_H16 = r"[0-9A-Fa-f]{1,4}"
_LS32 = rf"(?:{_H16}:{_H16}|{_IPV4})"


def _ipv6() -> str:
    """RFC 3986 section 3.2.2: `::` stands for at least one group."""
    forms = [rf"(?:{_H16}:){{6}}{_LS32}"]
    for before in range(8):  # at most this many groups before the ::
        head = rf"(?:{_H16}(?::{_H16}){{0,{before - 1}}})?" if before else ""
        left = 5 - before  # groups between the :: and the last 32 bits
        tail = _H16 if before == 6 else "" if before == 7 else (rf"(?:{_H16}:){{{left}}}" if left else "") + _LS32
        forms.append(f"{head}::{tail}")
    return "(?:" + "|".join(forms) + ")"


_IPV6 = _ipv6()
_PLANES = "".join(rf"\u{{{plane:x}0000}}-\u{{{plane:x}fffd}}" for plane in range(1, 14))
_UCS = rf"\u00a0-\ud7ff\uf900-\ufdcf\ufdf0-\uffef{_PLANES}\u{{e1000}}-\u{{efffd}}"
_PRIVATE = r"\ue000-\uf8ff\u{f0000}-\u{ffffd}\u{100000}-\u{10fffd}"


def _reference(unicode: bool, *, relative: bool) -> str:
    """URI and URI-reference of RFC 3986, IRI and IRI-reference of RFC 3987."""
    more = _UCS if unicode else ""
    escaped = "%[0-9A-Fa-f]{2}"
    plain = rf"A-Za-z0-9._~!$&'()*+,;=\-{more}"
    pchar = rf"(?:[{plain}:@]|{escaped})"
    authority = rf"(?:(?:[{plain}:]|{escaped})*@)?(?:\[(?:{_IPV6}|[vV][0-9A-Fa-f]+\.[A-Za-z0-9._~!$&'()*+,;=:-]+)\]|(?:[{plain}]|{escaped})*)(?::\d*)?"
    below = rf"(?:/{pchar}*)*"
    absolute = rf"/(?:{pchar}+{below})?"
    tail = rf"(?:\?(?:[{plain}:@/?{_PRIVATE if unicode else ''}]|{escaped})*)?(?:#(?:[{plain}:@/?]|{escaped})*)?"
    full = rf"[A-Za-z][A-Za-z0-9+.-]*:(?://{authority}{below}|{absolute}|{pchar}+{below}|){tail}"
    if not relative:
        return full
    first = rf"(?:[{plain}@]|{escaped})+"
    return rf"(?:{full}|(?://{authority}{below}|{absolute}|{first}{below}|){tail})"


_VARCHAR = r"(?:[A-Za-z0-9_]|%[0-9A-Fa-f]{2})"
_VARSPEC = rf"{_VARCHAR}(?:\.?{_VARCHAR})*(?::[1-9]\d{{0,3}}|\*)?"
_TEMPLATE = (
    rf"(?:[!#$&(-;=?-\[\]_a-z~{_UCS}{_PRIVATE}]|%[0-9A-Fa-f]{{2}}"
    rf"|\{{[+#./;?&]?{_VARSPEC}(?:,{_VARSPEC})*\}})*"
)
_ATEXT = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]"
_MAIL_DOMAIN = rf"(?:{_HOST_LABEL}\.)+[A-Za-z]{{1,63}}"
_LOCAL = rf"(?=[^@]{{1,64}}@){_ATEXT}+(?:\.{_ATEXT}+)*"
_IDN_LETTER = r"a-z\u00df-\u00f6\u00f8-\u00ff\u03ac-\u03c1\u03c3-\u03ce\u0430-\u045f\u3041-\u3094\u30a1-\u30fa\u4e00-\u9fa5\uac00-\ud7a3"
_IDN_LABEL = rf"(?:{_HOST_LABEL}|[0-9{_IDN_LETTER}]{{1,11}})"
_WITH_AT = r"[^@]*@[^]*"  # JSON Schema validators ask for no more than this
_IDN_LOCAL = rf"(?=[^@]{{1,21}}@)(?:{_ATEXT}|[{_IDN_LETTER}])+(?:\.(?:{_ATEXT}|[{_IDN_LETTER}])+)*"
_B64 = "[A-Za-z0-9+/]"
_B64URL = "[A-Za-z0-9_-]"
_POINTER = r"(?:/(?:[^/~]|~[01])*)*"
_MASK4 = r"(?:3[0-2]|[12]?\d)"
_MASK6 = r"(?:12[0-8]|1[01]\d|[1-9]?\d)"


def _network4() -> str:
    """address/length whose host bits are zero, as ipaddress wants it."""
    forms = []
    for length in range(33):
        whole, bits = divmod(length, 8)
        octets = [_OCTET] * whole
        if whole < 4:
            octets.append("(?:" + "|".join(str(n) for n in range(0, 256, 1 << (8 - bits))) + ")")
        octets += ["0"] * (4 - len(octets))
        forms.append(r"\.".join(octets) + f"/{length}")
    return "(?:" + "|".join(forms) + ")"


def _network6() -> str:
    """Whole groups, `::`, and a length that leaves no host bit set."""
    forms = [r"::/(?:12[0-8]|1[01]\d|[1-9]?\d)"]
    for groups in range(1, 8):
        lengths = "|".join(str(n) for n in range(16 * groups, 129))
        forms.append(rf"{_H16}(?::{_H16}){{{groups - 1}}}::/(?:{lengths})")
    return "(?:" + "|".join(forms) + ")"


_USER = r"(?:[A-Za-z0-9._~-]|%[0-9A-Fa-f]{2})"  # a comma would end the host
_PORT = r"(?:6553[0-5]|655[0-2]\d|65[0-4]\d\d|6[0-4]\d{3}|[1-5]\d{4}|[1-9]\d{0,3})"
_TAIL = r"(?:/[A-Za-z0-9._~!$&'()*+,;=:@/-]*)?(?:\?[A-Za-z0-9._~!$&'()*+,;=:@/?-]*)?(?:#[A-Za-z0-9._~!$&'()*+,;=:@/?-]*)?"


def _address(name: str) -> Format | None:
    """`url(http,https)`: an address with one of the schemes, as Pydantic's types of addresses ask for."""
    kind, _, rest = name.partition("(")
    schemes = rest.removesuffix(")").split(",")
    if kind not in ("url", "multi-host-url") or not rest.endswith(")") or not all(re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*", s) for s in schemes):
        return None
    scheme = "(?:" + "|".join(re.escape(s).replace(r"\-", "-") for s in schemes) + ")"
    if kind == "multi-host-url":
        return Format(_hosts(scheme), exact=False)
    host = rf"(?:(?:{_HOST_LABEL}\.)*[A-Za-z](?:[A-Za-z0-9-]{{0,1}}[A-Za-z0-9]){{0,30}}\.?|{_IPV4}|\[{_IPV6}\])"
    if schemes == ["file"]:
        return Format(rf"file://{_TAIL}", exact=False)
    return Format(rf"{scheme}://(?:{_USER}+(?::{_USER}*)?@)?{host}(?::{_PORT})?{_TAIL}", exact=False)


def _hosts(scheme: str) -> str:
    host = rf"(?:{_USER}+(?::{_USER}*)?@)?(?:{_HOST_LABEL}(?:\.{_HOST_LABEL})*)(?::{_PORT})?"
    return rf"{scheme}://{host}(?:,{host})*{_TAIL}"


_MAKERS: dict[str, Callable[[], Format]] = {
    "date-time": lambda: Format(rf"{_DATE}[Tt]{_TIME}", exact=False),
    "date": lambda: Format(_DATE, exact=False),
    "time": lambda: Format(_TIME, exact=False),
    "duration": lambda: Format(_DURATION, exact=False),
    "email": lambda: Format(rf"{_LOCAL}@{_MAIL_DOMAIN}", 254, exact=False, widest=_WITH_AT),
    "idn-email": lambda: Format(rf"{_IDN_LOCAL}@{_MAIL_DOMAIN}", 254, exact=False, widest=_WITH_AT),
    "hostname": lambda: Format(rf"{_HOST_LABEL}(?:\.{_HOST_LABEL})*", 253, exact=False),
    "idn-hostname": lambda: Format(rf"{_IDN_LABEL}(?:\.{_IDN_LABEL}){{0,3}}", 253, exact=False),
    "ipv4": lambda: Format(_IPV4),
    "ipv6": lambda: Format(_IPV6),
    "uri": lambda: Format(_reference(False, relative=False)),
    "uri-reference": lambda: Format(_reference(False, relative=True)),
    "iri": lambda: Format(_reference(True, relative=False)),
    "iri-reference": lambda: Format(_reference(True, relative=True)),
    "uri-template": lambda: Format(_TEMPLATE, exact=False),
    "uuid": lambda: Format(r"[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}"),
    "regex": lambda: Format(regex_pattern(), exact=False),
    "json-pointer": lambda: Format(_POINTER),
    "relative-json-pointer": lambda: Format(rf"(?:0|[1-9]\d*)(?:#|{_POINTER})"),
    # Pydantic's own
    "uuid1": lambda: _uuid(1),
    "uuid3": lambda: _uuid(3),
    "uuid4": lambda: _uuid(4),
    "uuid5": lambda: _uuid(5),
    "uuid6": lambda: _uuid(6),
    "uuid7": lambda: _uuid(7),
    "uuid8": lambda: _uuid(8),
    "datetime": lambda: Format(rf"{_DATE}[Tt]{_CLOCK}{_OFFSET}?", exact=False),
    "naive-datetime": lambda: Format(rf"{_DATE}[Tt]{_CLOCK}", exact=False),
    "clock": lambda: Format(rf"{_CLOCK}{_OFFSET}?", exact=False),
    "naive-clock": lambda: Format(_CLOCK, exact=False),
    "timedelta": lambda: Format(rf"[+-]?{_TIMEDELTA}", exact=False),
    "base64": lambda: Format(rf"(?:{_B64}{{4}})*(?:{_B64}[AQgw]==|{_B64}{{2}}[AEIMQUYcgkosw048]=)?", exact=False),
    "base64url": lambda: Format(rf"(?:{_B64URL}{{4}})*(?:{_B64URL}[AQgw]==|{_B64URL}{{2}}[AEIMQUYcgkosw048]=)?", exact=False),
    "ipv4interface": lambda: Format(rf"{_IPV4}(?:/{_MASK4})?", exact=False),
    "ipv6interface": lambda: Format(rf"{_IPV6}(?:/{_MASK6})?", exact=False),
    "ipvanyaddress": lambda: Format(f"(?:{_IPV4}|{_IPV6})"),
    "ipvanyinterface": lambda: Format(rf"(?:{_IPV4}(?:/{_MASK4})?|{_IPV6}(?:/{_MASK6})?)", exact=False),
    "ipv4network": lambda: Format(_network4(), exact=False),
    "ipv6network": lambda: Format(_network6(), exact=False),
    "ipvanynetwork": lambda: Format(f"(?:{_network4()}|{_network6()})", exact=False),
    "multi-host-uri": lambda: Format(_hosts("[A-Za-z][A-Za-z0-9+.-]*"), exact=False),
}


def _uuid(version: int) -> Format:
    return Format(rf"[0-9A-Fa-f]{{8}}-[0-9A-Fa-f]{{4}}-{version}[0-9A-Fa-f]{{3}}-[89ABab][0-9A-Fa-f]{{3}}-[0-9A-Fa-f]{{12}}", exact=False)


@cache
def find(name: str) -> Format | None:
    """What a format enforces; None for an annotation."""
    maker = _MAKERS.get(name)
    return maker() if maker else _address(name)


def names() -> tuple[str, ...]:
    """All formats that are enforced."""
    return tuple(_MAKERS)
