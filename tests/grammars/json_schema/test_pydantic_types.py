"""Every type that Pydantic offers for JSON: what random walks write validates, and what Pydantic writes is taken."""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import decimal
import enum
import ipaddress
import pathlib
import uuid
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Generic, Literal, NamedTuple, NotRequired, TypeVar

import numpy as np
import pydantic
import pytest
from pydantic import BaseModel, ConfigDict, Discriminator, Field, RootModel, StringConstraints, Tag, TypeAdapter, computed_field
from pydantic.networks import FileUrl, HttpUrl, IPvAnyAddress, KafkaDsn, MongoDsn, PostgresDsn, RedisDsn, WebsocketUrl
from typing_extensions import TypedDict

from agentkit.grammars import Grammar
from tests.cases.judge import accepts
from tests.grammars.test_random_walks import byte_vocabulary, random_text

T = TypeVar("T")
UTC = dt.UTC
D = decimal.Decimal


class Word(enum.StrEnum):
    A = "a"
    B = "b"


class Level(enum.IntEnum):
    ONE = 1
    TEN = 10


class Mixed(enum.Enum):
    RED = "red"
    TWO = 2
    NONE = None


class Inner(BaseModel):
    x: int
    y: str = "d"


class Aliased(BaseModel):
    a: int = Field(alias="A")
    b: str = Field("x", validation_alias="bee", serialization_alias="bee")


class Area(BaseModel):
    w: int

    @computed_field
    def double(self) -> int:
        return 2 * self.w


class Box(BaseModel, Generic[T]):
    item: T
    items: list[T] = []


class Nested(BaseModel):
    a: int | None = None
    b: list[str | None] | None = None
    d: Nested | None = None


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    x: int


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Fish(BaseModel):
    kind: Literal["fish", "shark"] = "fish"
    depth: float


class Numbers(RootModel[dict[str, list[int]]]):
    pass


class One(BaseModel):
    t: Literal["one"] = "one"
    n: int = 0


class Two(BaseModel):
    t: Literal["two"] = "two"
    n: int = 0


class Options(TypedDict):
    depth: int
    path: NotRequired[str]


class Pair(NamedTuple):
    a: int
    b: str = "x"


@dataclasses.dataclass
class Point:
    x: float
    y: list[int] = dataclasses.field(default_factory=list)


class Finite(BaseModel):
    model_config = ConfigDict(allow_inf_nan=False)
    f: float


class Base64(BaseModel):
    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
    b: bytes


class Hex(BaseModel):
    model_config = ConfigDict(ser_json_bytes="hex", val_json_bytes="hex")
    b: bytes


Pet = Annotated[Cat | Fish, Field(discriminator="kind")]
Called = Annotated[Annotated[One, Tag("one")] | Annotated[Two, Tag("two")], Discriminator(lambda v: v.get("t", "one") if isinstance(v, dict) else v.t)]

TYPES: list[tuple[Any, list[Any]]] = [
    (int, [0, -5, 10**18]),
    (float, [0.5, 1e-7, 1e300, -2.0]),
    (Finite, [Finite(f=1.5e-9)]),
    (Annotated[float, Field(gt=0, lt=1)], [0.5, 1e-05]),
    (Annotated[int, Field(multiple_of=7, ge=3)], [7]),
    (Annotated[float, Field(multiple_of=0.5)], [1.5]),
    (bytes, [b"abc"]),
    (Annotated[bytes, Field(min_length=2, max_length=4)], [b"abc"]),
    (Base64, [Base64(b=b"abcd")]),
    (Hex, [Hex(b=b"\x01")]),
    (D, [D("1.5"), D("-0.001"), D(10)]),
    (Annotated[D, Field(max_digits=5, decimal_places=2)], [D("123.45"), D("0.01")]),
    (Annotated[D, Field(gt=0)], [D("0.5"), D("3")]),
    (Annotated[D, Field(ge=0, max_digits=4, decimal_places=1)], [D("1.2"), D(0)]),
    (dt.datetime, [dt.datetime(2020, 1, 2, 3, 4, 5), dt.datetime(2020, 1, 2, tzinfo=UTC), dt.datetime(2020, 1, 2, tzinfo=dt.timezone(dt.timedelta(hours=-5)))]),
    (pydantic.AwareDatetime, [dt.datetime(2020, 1, 2, 3, 4, 5, 678, tzinfo=UTC)]),
    (pydantic.NaiveDatetime, [dt.datetime(2020, 1, 2)]),
    (dt.date, [dt.date(2020, 2, 29)]),
    (pydantic.PastDate, [dt.date(1990, 1, 1)]),
    (pydantic.FutureDate, [dt.date(2990, 1, 1)]),
    (Annotated[dt.date, Field(ge=dt.date(2019, 12, 31), lt=dt.date(2021, 3, 1))], [dt.date(2019, 12, 31), dt.date(2021, 2, 28)]),
    (dt.time, [dt.time(3, 4, 5), dt.time(3, 4, 5, 6, tzinfo=UTC)]),
    (dt.timedelta, [dt.timedelta(days=1, seconds=5), dt.timedelta(0), dt.timedelta(days=-3, microseconds=5)]),
    (Word, [Word.A]),
    (Level, [Level.TEN]),
    (Mixed, list(Mixed)),
    (Literal["a", 1, None, True, Word.B], ["a", 1, None, True]),
    (set[int], [{1, 2}]),
    (set[str], [{"a", "b"}]),
    (frozenset[float], [frozenset({1.5})]),
    (set[Level], [{Level.ONE}]),
    (set[tuple[int, int]], [{(1, 2)}]),
    (set[dt.date], [{dt.date(2020, 1, 1)}]),
    (set[uuid.UUID], [{uuid.UUID(int=5)}]),
    (Annotated[set[Literal["a", "b", "c"]], Field(min_length=2)], [{"a", "c"}]),
    (tuple[int, str], [(1, "a")]),
    (tuple[int, ...], [(1, 2)]),
    (tuple[()], [()]),
    (Pair, [Pair(1)]),
    (collections.deque[int], [collections.deque([1])]),
    (Sequence[int], [[1]]),
    (dict[str, int], [{"a": 1}]),
    (dict[int, str], [{1: "a"}]),
    (dict[Annotated[int, Field(gt=0)], int], [{3: 1}]),
    (dict[float, int], [{1.5: 1}]),
    (dict[bool, int], [{True: 1}]),
    (dict[D, int], [{D("1.5"): 1}]),
    (dict[Word, int], [{Word.A: 1}]),
    (dict[Level, int], [{Level.TEN: 1}]),
    (dict[uuid.UUID, int], [{uuid.UUID(int=5): 1}]),
    (dict[dt.date, int], [{dt.date(2020, 1, 1): 1}]),
    (dict[dt.datetime, int], [{dt.datetime(2020, 1, 1): 1}]),
    (dict[tuple[int, int], str], []),
    (dict[Annotated[str, StringConstraints(pattern="^x")], int], [{"xa": 1}]),
    (Annotated[dict[str, int], Field(min_length=1, max_length=2)], [{"a": 1}]),
    (collections.Counter[str], [collections.Counter("a")]),
    (Mapping[str, int], [{"a": 1}]),
    (uuid.UUID, [uuid.UUID(int=7)]),
    (pydantic.UUID4, [uuid.UUID("8f14e45f-ceea-4672-8c8b-3f4b2d7a9b11")]),
    (ipaddress.IPv4Address, [ipaddress.ip_address("1.2.3.4")]),
    (ipaddress.IPv6Network, [ipaddress.ip_network("2001:db8::/32")]),
    (ipaddress.IPv4Interface, [ipaddress.ip_interface("1.2.3.4/8")]),
    (IPvAnyAddress, [ipaddress.ip_address("::1")]),
    (HttpUrl, [HttpUrl("https://example.com/a?b=c"), HttpUrl("http://127.0.0.1:8000")]),
    (WebsocketUrl, [WebsocketUrl("wss://a.b")]),
    (FileUrl, [FileUrl("file:///x")]),
    (PostgresDsn, [PostgresDsn("postgresql+psycopg://u:p@h:1/db")]),
    (RedisDsn, [RedisDsn("redis://localhost:6379/0")]),
    (MongoDsn, [MongoDsn("mongodb://a:1,b:2/db")]),
    (KafkaDsn, [KafkaDsn("kafka://localhost:9092")]),
    (pathlib.Path, [pathlib.Path("/a/b")]),
    (pydantic.Base64Bytes, []),
    (Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)], ["a"]),
    (Inner, [Inner(x=1)]),
    (Aliased, [Aliased(A=1)]),
    (Area, []),
    (Box[int], [Box[int](item=1)]),
    (Box[Box[str]], [Box[Box[str]](item=Box[str](item="a"))]),
    (Nested, [Nested(), Nested(b=[None], d=Nested(a=2))]),
    (Open, [Open(x=1, z=3)]),  # type: ignore[call-arg]
    (Numbers, [Numbers({"a": [1]})]),
    (list[Pet], [[Cat(kind="cat", lives=9), Fish(depth=1.5), Fish(kind="shark", depth=2)]]),
    (Called, [One(n=1), Two()]),
    (Options, [{"depth": 1}, {"depth": 1, "path": "x"}]),
    (Point, [Point(1.5, [1])]),
    (int | str | list[int], [1, "a", [2]]),
]


@pytest.mark.parametrize(("type_", "values"), [pytest.param(*case, id=str(i)) for i, case in enumerate(TYPES)])
def test_walks_validate_and_dumps_are_taken(type_: Any, values: list[Any]) -> None:
    adapter, grammar, vocabulary = TypeAdapter(type_), Grammar.from_pydantic(type_), byte_vocabulary()
    for value in values:
        text = adapter.dump_json(value, by_alias=True).decode()
        assert adapter.validate_json(text) == value
        assert accepts(grammar, text), text
    for seed in range(3):
        adapter.validate_json(random_text(grammar, vocabulary, np.random.default_rng(seed), 100))


def test_a_set_keeps_its_items_apart() -> None:
    """Validation would drop equal items, and might then find too few."""
    assert not accepts(Grammar.from_pydantic(set[int]), "[1,1]")
    assert not accepts(Grammar.from_pydantic(Annotated[set[bool], Field(min_length=2)]), "[true,true]")
    assert not accepts(Grammar.from_pydantic(set[str]), '["a","a"]')


def test_a_discriminator_is_written_even_if_it_has_a_default() -> None:
    assert not accepts(Grammar.from_pydantic(Pet), '{"depth":1.5}')


def test_addresses_have_the_schemes_of_their_type() -> None:
    grammar = Grammar.from_pydantic(HttpUrl)
    assert not any(accepts(grammar, text) for text in ('"ftp://a.b"', '"http://"', '"a.b"'))
