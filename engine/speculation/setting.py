"""What Engine(speculation=...) may say.

    "off"            plain decoding            "auto"           what pays without further weights: "ngram"
    "ngram"          prompt lookup             "lookahead"      Jacobi windows and their n-grams
    "draft:MODEL"    a smaller model           "self", "self:K" the model's own first K layers (a third of them)
    "medusa", "eagle", "medusa:FILE", "eagle:FILE"              trained heads (agentkit train)

Knows nothing of what the settings stand for.
"""

from __future__ import annotations

from agentkit.errors import InvalidOption

PLAIN = ("auto", "off", "ngram", "lookahead", "self", "medusa", "eagle")
WITH_VALUE = ("draft", "self", "medusa", "eagle")


def check_speculation(setting: object) -> None:
    """Raises ValueError for a setting that is none of those above."""
    name, _, value = setting.partition(":") if isinstance(setting, str) else ("", "", "")
    fine = setting in PLAIN or (name in WITH_VALUE and value)
    if not fine or (name == "self" and value and not value.isdecimal()):
        known = ", ".join([*map(repr, PLAIN), "'draft:MODEL'", "'self:LAYERS'", "'medusa:FILE'", "'eagle:FILE'"])
        raise InvalidOption(f"speculation={setting!r} is not available; choose one of {known}")
