"""Constants: `enum` and `const` of any JSON value, as shapes.

Equality is JSON Schema's: 1 and 1.0 are one number, true is not 1, key order does not matter. Scalars become finite
sets; arrays and objects become closed shapes whose members are constants again, so they intersect and complement
like any other. Knows nothing of spelling.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentkit.errors import InvalidGrammar
from agentkit.grammars.frontends.json_schema.document import escape
from agentkit.grammars.frontends.json_schema.families import NOTHING
from agentkit.grammars.frontends.json_schema.keywords import number
from agentkit.grammars.frontends.json_schema.scalars import Numbers, Strings
from agentkit.grammars.frontends.json_schema.shapes import ANY_NULL, Array, Booleans, Object, Shape
from agentkit.grammars.frontends.json_schema.types import FALSE, Type, Value

if TYPE_CHECKING:
    from fractions import Fraction

    from agentkit.grammars.frontends.json_schema.expand import Expander


def shapes_of_values(values: list[Any], pointer: str, x: Expander) -> tuple[Shape, ...]:
    """The union of the given constants. `pointer`: where the list (or the one value) stands."""
    strings: set[str] = set()
    numbers: set[Fraction] = set()
    booleans: set[bool] = set()
    out: dict[Shape, None] = {}
    for value in values:
        if isinstance(value, str):
            strings.add(value)
        elif isinstance(value, bool):
            booleans.add(value)
        elif isinstance(value, (int, float)):
            numbers.add(number(value, "", pointer))
        elif value is None:
            out[ANY_NULL] = None
        elif isinstance(value, (list, tuple)):
            items = tuple(_constant(v, f"{pointer}/{i}", x) for i, v in enumerate(value))
            out[Array(items, FALSE, len(items), len(items))] = None
        elif isinstance(value, dict):
            out[_object(value, pointer, x)] = None
        else:
            raise InvalidGrammar(f"{pointer}: {value!r} is not a JSON value", pointer=pointer)
    if booleans:
        out[Booleans(frozenset(booleans))] = None
    if numbers:
        out[Numbers.of(frozenset(numbers))] = None
    if strings:
        out[Strings.of(frozenset(strings))] = None
    return tuple(out)


def _object(value: dict[Any, Any], pointer: str, x: Expander) -> Object:
    for name in value:
        if not isinstance(name, str):
            raise InvalidGrammar(f"{pointer}: the key {name!r} of a JSON object must be a string", pointer=pointer)
    fields = {name: _constant(v, f"{pointer}/{escape(name)}", x) for name, v in value.items()}
    return Object(fields, frozenset(fields), NOTHING)


def _constant(value: Any, pointer: str, x: Expander) -> Type:
    """The type of one constant; equal scalars are one type."""
    if value is None or isinstance(value, (bool, int, float, str)):
        key = (hash((type(value) is bool, value)), -2)
        source = Value(value, pointer)
        known = x.types.atom(source, key)
        same = known.source.value
        if type(same) is type(value) and same == value:
            return known
    return x.types.atom(Value(value, pointer), (id(value), -3))
