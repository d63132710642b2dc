"""Formats: examples of the RFCs, and random members handed to the validators that see what is generated."""

from __future__ import annotations

import ipaddress
import random
import re
import uuid
from datetime import date, datetime, time, timedelta

import idna
import pydantic
import pytest
from jsonschema import Draft202012Validator
from pydantic import TypeAdapter
from pydantic_core import MultiHostUrl, to_json

from agentkit.grammars.frontends import formats
from agentkit.grammars.frontends.regex_parser import parse
from agentkit.grammars.frontends.texts import TextSet
from tests.grammars.scalars.walk import random_member

PYDANTIC = {
    "date-time": datetime,
    "date": date,
    "time": time,
    "duration": timedelta,
    "uri": pydantic.AnyUrl,
    "ipv4": ipaddress.IPv4Address,
    "ipv6": ipaddress.IPv6Address,
    "ipvanyaddress": pydantic.IPvAnyAddress,
    "ipv4interface": ipaddress.IPv4Interface,
    "ipv6interface": ipaddress.IPv6Interface,
    "ipvanyinterface": pydantic.IPvAnyInterface,
    "ipv4network": ipaddress.IPv4Network,
    "ipv6network": ipaddress.IPv6Network,
    "ipvanynetwork": pydantic.IPvAnyNetwork,
    "uuid": uuid.UUID,
    **{f"uuid{n}": getattr(pydantic, f"UUID{n}") for n in (1, 3, 4, 5, 6, 7, 8)},
    "base64": pydantic.Base64Bytes,
    "base64url": pydantic.Base64UrlBytes,
    "multi-host-uri": MultiHostUrl,
}
EXAMPLES = {
    "date-time": ("2024-05-06T07:08:09Z 2024-05-06T07:08:09.123+05:30 2024-02-29t00:00:00z", "2024-05-06T25:00:00Z 2024-05-06T07:08:09 2023-02-29T00:00:00Z"),
    "date": ("2024-02-29 2000-02-29 1999-12-31 0400-02-29", "1900-02-29 2023-02-29 2024-13-01 2024-04-31 24-01-01 2024-1-1 ２024-01-01"),
    "time": ("00:00:00Z 23:59:59.5-23:59", "24:00:00Z 12:60:00Z 12:00:00 12:00Z 12:00:00+24:00"),
    "duration": ("P4DT12H30M5S P1M PT1M P2W P1Y2M3D PT36H", "P PT P1Y2W 1D P1D2H P2D1Y P1YT PT1D P1Y2D"),
    "email": ("joe.bloggs@example.com te~st@example.co.uk a@b.de a@b.c", "2962 .test@example.com te..st@example.com joe@ @x.de a@b joe@-x.de a@1.2"),
    "idn-email": ("мария@example.com a@b.de", "мария a@"),
    "hostname": ("www.example.com localhost a 1.2.3 " + "a" * 63, "-a a- a..b a_b xn--x ab--c " + "a" * 64 + " a."),
    "idn-hostname": ("münchen.de 例 localhost", "-a a- 〮x"),
    "ipv4": ("127.0.0.1 255.255.255.255 0.0.0.0", "256.1.1.1 1.2.3 01.2.3.4 1.2.3.4.5 1.2.3.4/8"),
    "ipv6": (":: ::1 1::8 1:2:3:4:5:6:7:8 ::ffff:1.2.3.4 1:2:3:4:5:6:7:: 2001:DB8::a 1::2:3:4:5:6:7", "1:2 1::2::3 12345:: ::1% 1:2:3:4:5:6:7:8:9 :1 1:::2"),
    "uri": ("https://example.test/a?b=c#d urn:x:y mailto:a@b.c http://[::1]:80/ file:///etc a:", "/rel //x/y http://a\\b http://x/<> no:%zz 1a:b http://[1::2::3]/"),
    "uri-reference": ("/rel a/b ?q #f //host/x ../x http://x", "a:b:%z \\x #a#b %"),
    "iri": ("http://ƒøø.ßår/?∂éœ=πîx#πîüx a:\U0001f600", "/x http://x\\y"),
    "iri-reference": ("⁠â/b /é", "#ƒräg\\mênt"),
    "uri-template": ("http://x/{term:1}/{+path}{?a,b*} {x} a", "{x {} {x|} }"),
    "uuid": ("2EB8AA08-aa98-11ea-b4aa-73b441d16380", "2eb8aa08aa9811eab4aa73b441d16380 2eb8aa08-aa98-11ea-b4aa-73b441d1638 2eb8-aa08"),
    "json-pointer": ("/a/~0~1 / /é//", "a /~ /~2 #"),
    "relative-json-pointer": ("0 1/a 10# 120/foo", "/a -1 01 +1 0##"),
    "uuid4": ("98d80576-482e-427f-8434-7f86890ab222", "98d80576-482e-427f-c434-7f86890ab222 98d80576-482e-127f-8434-7f86890ab222"),
    "base64": ("YQ== YWI= YWJj", "YQ YQ=== Y=== YW_j"),
    "base64url": ("YW_j YQ==", "YW+j"),
    "ipv4network": ("10.0.0.0/8 192.168.128.0/17 1.2.3.4/32 0.0.0.0/0", "10.0.0.1/8 10.0.0.0 10.0.0.0/33"),
    "ipv6network": ("2001:db8::/32 ::/0", "2001:db8::/16 ::1/64"),
    "multi-host-uri": ("postgres://u:p@a:1,b:2/db", "postgres:// a,b"),
    "regex": (
        r".*\.test\.[jt]sx?$ /x.*\.(png|jpg)/ ^(?:a|b|)*?$ [^\s-] [a-z0-9_-]{2,5} ^(?!x)\w+$ (a(b(c))) ([abc])+\s+$ \u00e9\x41 a{2} a{2,} \bx\b [-a] [\]] ||",
        r"[ ( a) ^(abc] *a a** a++ a{2,1} [z-a] \ \q \u12 \x4 [] [^] (?<n>a) (?P<n>a) ^* \b+ a{ a{x} (? (?=a)* ((((a)))) [\d-z] {2}",
    ),
}  # fmt: skip


def texts_of(name: str) -> TextSet:
    found = formats.find(name)
    assert found is not None
    return TextSet([found.tree()], hi=found.max_length)


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples(name):
    good, bad = EXAMPLES[name]
    texts = texts_of(name)
    assert [t for t in good.split() if t not in texts] == []
    assert [t for t in bad.split() if t in texts] == []


def test_lengths_of_addresses():
    email, host = texts_of("email"), texts_of("hostname")
    assert "a" * 64 + "@b.de" in email
    assert "a" * 65 + "@b.de" not in email
    assert "a@" + "b." * 125 + "de" in email
    assert "a@" + "b." * 126 + "de" not in email
    assert ".".join(["a" * 63] * 3 + ["a" * 61]) in host
    assert ".".join(["a" * 63] * 3 + ["a" * 62]) not in host


@pytest.mark.parametrize("name", formats.names())
def test_random_members_pass_the_validators(name):
    rng = random.Random(name)
    texts = texts_of(name)
    checker = Draft202012Validator.FORMAT_CHECKER
    for _ in range(25):
        text = random_member(texts, rng, rng.choice([3, 10, 30, 60]))
        if name in PYDANTIC:
            TypeAdapter(PYDANTIC[name]).validate_json(to_json(text))
        if name in ("uuid", "ipv4", "ipv6", "date", "email", "idn-email"):  # those that jsonschema checks without extras
            assert checker.conforms(text, name), text
        if name == "regex":
            re.compile(text)
            parse(text, "ecma")
        if name in ("hostname", "idn-hostname"):
            idna.encode(text, std3_rules=True) if name == "idn-hostname" else text.encode("ascii")


@pytest.mark.parametrize("name", [n for n in formats.names() if formats.find(n).widest is not None])
def test_the_widest_reading_holds_every_member_and_all_that_a_validator_takes(name):
    found = formats.find(name)
    widest = TextSet([found.widest_tree()])
    rng, members = random.Random(name), texts_of(name)
    assert all(random_member(members, rng, n) in widest for n in (3, 5, 10, 30, 60))
    assert all(Draft202012Validator.FORMAT_CHECKER.conforms(text, name) <= (text in widest) for text in ["", "@", "a@b", '"a b"@c', "a@[::1]", "a@b.de", "ab"])


def test_every_format_has_members():
    for name in formats.names():
        assert not texts_of(name).is_empty(), name


def test_days_of_every_month():
    texts = texts_of("date")
    for year in (1, 4, 100, 400, 1900, 2000, 2023, 2024, 9999):
        for month in range(14):
            for day in range(33):
                text = f"{year:04}-{month:02}-{day:02}"
                try:
                    real = date.fromisoformat(text).isoformat() == text
                except ValueError:
                    real = False
                assert (text in texts) == real, text


@pytest.mark.parametrize("name", ["password", "binary", "color", "made-up", ""])
def test_annotations(name):
    assert formats.find(name) is None
