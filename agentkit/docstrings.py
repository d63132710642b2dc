"""Descriptions of a tool and of its parameters, read from a docstring.

Input: the docstring and the names of the parameters. Output: a `Description`. Google, numpy and sphinx styles are
read through griffe (imported at the first docstring that has one); the style that documents most of the parameters wins.
A docstring can never break a tool: what no parser understands is kept whole as the description.
Knows nothing of types, schemas or tools.
"""

from __future__ import annotations

import inspect
import logging
import re
import textwrap
from collections.abc import Collection
from dataclasses import dataclass, field

__all__ = ["Description", "describe"]

logger = logging.getLogger("agentkit.docstrings")

_PARAMETERS = r"args|arguments|params|parameters|attributes|keyword arg(?:ument)?s|other parameters"
_HEADER = rf"(?:{_PARAMETERS}|returns?|raises|yields|examples?|notes?|warnings?)[ \t]*:[ \t]*$"
# A docstring without one of these has no parameter section in any style, and griffe (80 ms to import) is not needed.
_SECTION = re.compile(rf"^\s*({_PARAMETERS})\s*:?\s*$|^\s*[:@](param|parameter|arg|argument|key|keyword)\b", re.I | re.M)
_EPYTEXT = re.compile(r"^(\s*)@(param|parameter|arg|argument|key|keyword|type|returns?|rtype|raises?)\b", re.M)
_FIRST_LINE_HEADER = re.compile(_HEADER, re.I | re.M)
_TIGHT_HEADER = re.compile(rf"(?<=\S)\n(?={_HEADER})", re.I | re.M)
_NO_SUMMARY = "(no summary)"  # parsers look for sections after some text
_STYLES = ("google", "numpy", "sphinx")


@dataclass(frozen=True)
class Description:
    """What a docstring says.

    text: the description without its sections ("" if there is none).
    parameters: name -> description, only of parameters that exist and are documented.
    """

    text: str = ""
    parameters: dict[str, str] = field(default_factory=dict)


def describe(docstring: str | None, parameters: Collection[str], *, owner: str = "the tool") -> Description:
    """Reads a docstring; never raises.

    Args:
        docstring: as written; None and "" give an empty description.
        parameters: the names that may be described; others are ignored, and a warning is logged.
        owner: named in the log.
    """
    text = inspect.cleandoc(docstring or "")
    if not _SECTION.search(text):
        return Description(text)
    tidied = _tidied(text)
    best: tuple[int, str, dict[str, str]] = (0, text, {})
    for style in _STYLES:
        try:
            body, documented = _parse(tidied, style)
        except Exception as error:  # noqa: BLE001  # any failure of a third-party parser leaves the text whole; it is logged, the tool works
            logger.warning("the docstring of %s cannot be read as %s style: %s", owner, style, error)
            continue
        known = len(documented.keys() & set(parameters))
        if known > best[0] or (known == best[0] == 0 and documented and not best[2]):
            best = (known, body, documented)
    _, body, documented = best
    for name in documented.keys() - set(parameters):
        logger.warning("the docstring of %s describes %r, which is not a parameter", owner, name)
    return Description(body, {name: documented[name] for name in documented if name in parameters})


def _tidied(text: str) -> str:
    """What people write and no parser reads, in the form that they do: a header in the first line or without a blank one before it, epytext."""
    if _FIRST_LINE_HEADER.match(text):
        first, _, rest = text.partition("\n")
        indented = rest if rest[:1].isspace() else textwrap.indent(rest, "    ")  # a lone section lost its indentation to cleandoc
        text = f"{_NO_SUMMARY}\n\n{first}\n{indented}"
    return _EPYTEXT.sub(r"\1:\2", _TIGHT_HEADER.sub("\n\n", text))


def _parse(text: str, style: str) -> tuple[str, dict[str, str]]:
    """One style: the text outside of sections, and the parameters it documents (stars of *args taken off)."""
    import griffe

    docstring = griffe.Docstring(text)
    parsers = {"google": griffe.parse_google, "numpy": griffe.parse_numpy, "sphinx": griffe.parse_sphinx}
    sections = parsers[style](docstring, warnings=False)
    body: list[str] = []
    documented: dict[str, str] = {}
    for section in sections:
        kind = section.kind.value
        if kind == "text":
            body.append(str(section.value).strip().removeprefix(_NO_SUMMARY).strip())
        elif kind in ("parameters", "other parameters", "attributes"):
            for item in section.value:
                description = str(item.description or "").strip()
                for name in str(item.name).split(","):
                    documented[name.strip().strip("`*")] = description
    return "\n\n".join(part for part in body if part), {name: value for name, value in documented.items() if value}
