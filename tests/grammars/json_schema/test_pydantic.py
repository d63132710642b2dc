"""Ordinary Pydantic models and Python types: what Pydantic dumps is in the language, what it refuses is not."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import uuid
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError
from typing_extensions import TypeAliasType, TypedDict

from agentkit.errors import InvalidGrammar
from agentkit.grammars import Grammar
from tests.grammars import reference
from tests.grammars.json_schema.oracle import check


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 10


class Address(Strict):
    street: str = Field(min_length=1, max_length=40)
    zip: Annotated[str, StringConstraints(pattern=r"^\d{5}$")]


class Person(Strict):
    name: str
    age: int = Field(ge=0, lt=150)
    email: str | None = None
    home: Address
    tags: list[str] = Field(default=[], max_length=3)
    color: Color = Color.RED
    level: Level = Level.LOW


class Cat(Strict):
    kind: Literal["cat"]
    lives: int = Field(ge=1, le=9)


class Dog(Strict):
    kind: Literal["dog"]
    good: bool = True


class Owner(Strict):
    pet: Annotated[Cat | Dog, Field(discriminator="kind")]


class Node(Strict):
    name: str
    kids: list[Node] = []


class Timed(Strict):
    at: datetime.datetime
    day: datetime.date
    clock: datetime.time
    lasts: datetime.timedelta
    key: uuid.UUID


@dataclasses.dataclass
class Point:
    x: float
    y: float = 0.0


class Options(TypedDict, total=False):
    depth: int
    path: str


Json = TypeAliasType("Json", "dict[str, Json] | list[Json] | str | int | None")


@pytest.mark.parametrize(
    ("model", "good", "bad"),
    [
        (
            Person,
            [
                '{"name":"Ann","age":3,"home":{"street":"x","zip":"12345"}}',
                '{"name":"Ann","age":149,"email":null,"home":{"street":"x","zip":"12345"},"tags":["a"],"color":"blue","level":10}',
            ],
            [
                '{"name":"Ann","age":150,"home":{"street":"x","zip":"12345"}}',
                '{"name":"Ann","age":3,"home":{"street":"","zip":"12345"}}',
                '{"name":"Ann","age":3,"home":{"street":"x","zip":"1234"}}',
                '{"name":"Ann","age":3,"home":{"street":"x","zip":"12345"},"tags":["a","b","c","d"]}',
                '{"name":"Ann","age":3,"home":{"street":"x","zip":"12345"},"color":"green"}',
                '{"name":"Ann","age":3,"home":{"street":"x","zip":"12345"},"level":2}',
                '{"name":"Ann","age":3,"home":{"street":"x","zip":"12345"},"other":2}',
                '{"age":3}',
            ],
        ),
        (
            Owner,
            ['{"pet":{"kind":"cat","lives":9}}', '{"pet":{"kind":"dog"}}'],
            ['{"pet":{"kind":"dog","lives":9}}', '{"pet":{"kind":"cow"}}', '{"pet":{"lives":1}}'],
        ),
        (Node, ['{"name":"a"}', '{"name":"a","kids":[{"name":"b","kids":[]}]}'], ['{"kids":[]}', '{"name":"a","kids":[{}]}', '{"name":1}']),
        (
            Timed,
            [
                '{"at":"2024-05-06T07:08:09Z","day":"2024-02-29","clock":"07:08:09Z","lasts":"PT1H","key":"2eb8aa08-aa98-11ea-b4aa-73b441d16380"}',
            ],
            [
                '{"at":"2024-05-06","day":"2024-02-29","clock":"07:08:09Z","lasts":"PT1H","key":"2eb8aa08-aa98-11ea-b4aa-73b441d16380"}',
                '{"at":"2024-05-06T07:08:09Z","day":"2023-02-29","clock":"07:08:09Z","lasts":"PT1H","key":"2eb8aa08-aa98-11ea-b4aa-73b441d16380"}',
                '{"at":"2024-05-06T07:08:09Z","day":"2024-02-29","clock":"07:08:09Z","lasts":"PT1H","key":"2eb8aa08"}',
            ],
        ),
        (Point, ['{"x":1.5}', '{"x":1,"y":-2.25}'], ['{"y":1}', '{"x":"1"}']),
        (Options, ["{}", '{"depth":1}', '{"depth":1,"path":"a"}'], ['{"depth":"1"}']),
        (int | None, ["null", "3"], ['"3"', "1.5"]),
        (int | str | None, ["null", "3", '"x"'], ["1.5", "[]"]),
        (tuple[int, str], ['[1,"a"]'], ["[1]", '[1,"a",2]', '["a",1]']),
        (tuple[int, ...], ["[]", "[1,2,3]"], ['["a"]']),
        (dict[str, int], ["{}", '{"a":1,"b":2}'], ['{"a":"1"}', '{"a":1,"a":2}']),
        (dict[Literal["a", "b"], int], ["{}", '{"a":1}', '{"a":1,"b":2}'], ['{"c":1}', '{"a":null}']),
        (dict[Annotated[str, StringConstraints(pattern="^[a-z]+$")], int], ["{}", '{"ab":1}'], ['{"A":1}', '{"ab":"x"}']),
        (list[Literal[1, 2]], ["[]", "[1,2,1]"], ["[3]"]),
        (decimal.Decimal, ["1.5", '"1.50"', '"-0.1"', '"+7"'], ['"-"', '""', "null", '"abc"', '"NaN"']),
        (Annotated[decimal.Decimal, Field(ge=0, decimal_places=2)], ["1.5", "0", "3.25"], ["-1", "0.125", '"-1"']),
        (Annotated[decimal.Decimal, Field(max_digits=4, decimal_places=2)], ["12.34", '"12.34"', '"0.05"', "-1"], ["123", '"123"', '"1.234"', "1.234"]),
        (Annotated[decimal.Decimal, Field(max_digits=3)], ['"123"', '"0.12"', '"1.23"'], ['"1234"', '"12.34"']),
        (dict[int, str], ["{}", '{"1":"a","-20":"b"}'], ['{"a":"b"}', '{"01":"b"}']),
        (Annotated[int, Field(multiple_of=5, gt=0)], ["5", "100"], ["0", "-5", "7"]),
        (Literal["a", 1, True, None], ['"a"', "1", "true", "null"], ['"b"', "2", "false"]),
        (Json, ["null", '{"a":[1,{"b":"x"}]}', "[[]]"], ["1.5", "true", '{"a":1.5}']),
        (bool, ["true", "false"], ["null", "0"]),
        (Any, ["null", '{"a":[1]}'], ["x"]),
    ],
    ids=lambda x: getattr(x, "__name__", None) or (str(x)[:40] if not isinstance(x, list) else ""),
)
def test_models(model: Any, good: list[str], bad: list[str]) -> None:
    check_model(model, good, bad)


def check_model(model: Any, good: list[str], bad: list[str]) -> None:
    """The language agrees with the lists, and Pydantic takes all of `good` and dumps nothing of `bad`."""
    adapter: TypeAdapter[Any] = TypeAdapter(model)
    for text in good:
        adapter.validate_json(text)
    known = reference.Reference(Grammar.from_pydantic(model, key_order="any").program)
    assert [t for t in good if not reference.accepts(known, t.encode())] == []
    assert [t for t in bad if reference.accepts(known, t.encode())] == []


def test_dumps_of_valid_instances_are_in_the_language() -> None:
    person = Person(name='Ånn "x"', age=3, home=Address(street="Main\n1", zip="00000"), tags=["a", "b"], color=Color.BLUE)
    known = reference.Reference(Grammar.from_pydantic(Person).program)
    assert reference.accepts(known, person.model_dump_json().encode())
    node = Node(name="a", kids=[Node(name="b", kids=[Node(name="c")])])
    assert reference.accepts(reference.Reference(Grammar.from_pydantic(Node).program), node.model_dump_json().encode())


def test_sets_of_strings_are_unique() -> None:
    check_model(set[str], ["[]", '["a","b"]'], ['["a","a"]', "[1]"])


def test_aliases_and_modes() -> None:
    class Aliased(Strict):
        inner: int = Field(alias="outer")

    class Computed(Strict):
        amount: decimal.Decimal

    check(Aliased, ['{"outer":1}'], ['{"inner":1}'])
    check(Aliased, ['{"inner":1}'], ['{"outer":1}'], by_alias=False)
    check(Computed, ['{"amount":1}', '{"amount":"1.5"}'], ['{"amount":null}'], mode="validation")
    check(Computed, ['{"amount":"1.5"}'], ['{"amount":1}'], mode="serialization")


def test_open_models_take_other_keys() -> None:
    class Open(BaseModel):
        a: int

    check(Open, ['{"a":1}', '{"a":1,"b":[]}'], ['{"b":1}', '{"a":1,"a":2}'])


def test_a_type_without_a_schema_is_named() -> None:
    class Odd:
        pass

    with pytest.raises(InvalidGrammar, match="Odd"):
        Grammar.from_pydantic(Odd)

    class Holds(BaseModel):
        model_config = ConfigDict(arbitrary_types_allowed=True)
        odd: Odd

    with pytest.raises(InvalidGrammar, match="Holds"):
        Grammar.from_pydantic(Holds)


def test_the_oracle_can_fail() -> None:
    with pytest.raises(ValidationError):
        check_model(Point, ['{"y":1}'], [])
    with pytest.raises(AssertionError):
        check_model(Point, [], ['{"x":1}'])
