"""JSON string languages from facets: lengths, patterns, formats, texts left out.

Input: `StringFacets`, a set of texts; output: nodes of the whole quoted string, or of a key's content. Spelling follows
docs/spelling.md: free and length-bounded strings in every legal spelling, all others canonically. An intersection is only
built where more than one constraint is left after lengths have been folded into runs of one class and dropped where a
pattern implies them. Knows nothing of schemas but the names of their keywords.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache

from agentkit.errors import GrammarError, UnsupportedSchema
from agentkit.grammars.compose import include
from agentkit.grammars.expr import Builder, Node, Program
from agentkit.grammars.frontends import formats
from agentkit.grammars.frontends import regex_ast as ast
from agentkit.grammars.frontends.chars import JSON, JSON_FULL, SCALARS, Alphabet, CharSet, json_escape
from agentkit.grammars.frontends.regex import lower, whole_text
from agentkit.grammars.frontends.regex_ast import Chars, Repeat, Seq, Tree
from agentkit.grammars.frontends.regex_parser import parse
from agentkit.grammars.frontends.texts import TextSet
from agentkit.grammars.settings import settings

CHARACTERS = 0x110000 - 0x800  # texts of one character


def spellable(text: str) -> bool:
    """Lone surrogates stand for no character, so no UTF-8 text carries them."""
    return text.isascii() or not any("\ud800" <= c <= "\udfff" for c in text)


@lru_cache(maxsize=4096)
def _pattern_tree(pattern: str) -> Tree:
    return whole_text(parse(pattern, "ecma"), True)


def _checked_tree(pattern: str, pointer: str) -> Tree:
    try:
        return _pattern_tree(pattern)
    except GrammarError:
        parse(pattern, "ecma", pointer=pointer)  # raises the same, and says where
        raise


@lru_cache(maxsize=4096)
def beginning(pattern: str) -> str:
    """What every text that a pattern matches begins with, as far as the pattern plainly says."""
    tree, out = _pattern_tree(pattern), ""
    for part in tree.parts if isinstance(tree, Seq) else (tree,):
        char = part.set.single() if isinstance(part, Chars) else None
        if char is None:
            break
        out += char
    return out


@dataclass(frozen=True)
class StringFacets:
    """A set of texts.

    min_length, max_length: in characters. patterns, not_patterns: ECMA-262, found anywhere in the text (or not).
    formats, not_formats: names that formats.find knows. excluded: texts left out.
    """

    min_length: int = 0
    max_length: int | None = None
    patterns: frozenset[str] = frozenset()
    not_patterns: frozenset[str] = frozenset()
    formats: frozenset[str] = frozenset()
    not_formats: frozenset[str] = frozenset()
    excluded: frozenset[str] = frozenset()

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash(tuple(getattr(self, name) for name in self.__dataclass_fields__))

    @staticmethod
    def make(
        *,
        min_length: int = 0,
        max_length: int | None = None,
        pattern: str | None = None,
        format: str | None = None,
        pointer: str = "#",
    ) -> StringFacets:
        """Facets of JSON Schema keywords; a format that formats.find does not know is an annotation and adds nothing.

        pointer: of the schema; errors about the pattern name its place below it.
        Raises InvalidGrammar, UnsupportedSchema or GrammarTooComplex for a pattern that is malformed, not regular, or too deep.
        """
        patterns: frozenset[str] = frozenset()
        if pattern is not None:
            tree = _checked_tree(pattern, f"{pointer}/pattern")
            if tree.looks:
                lower(Builder(), tree, JSON, f"{pointer}/pattern")  # what cannot be made regular is refused here
            if tree != ast.ANY_TEXT:
                patterns = frozenset([pattern])
        known = frozenset[str]() if format is None or formats.find(format) is None else frozenset([format])
        return StringFacets(min_length, max_length, patterns, formats=known)

    @property
    def lengths_only(self) -> bool:
        return not (self.patterns or self.not_patterns or self.formats or self.not_formats or self.excluded)

    @property
    def unconstrained(self) -> bool:
        return self.lengths_only and self.min_length == 0 and self.max_length is None

    @property
    def only_format(self) -> str | None:
        """The format that says all there is to say, or None."""
        only = len(self.formats) == 1 and self.min_length == 0 and self.max_length is None
        return next(iter(self.formats)) if only and not (self.patterns or self.not_patterns or self.not_formats or self.excluded) else None

    def intersect(self, other: StringFacets) -> StringFacets:
        tops = [x for x in (self.max_length, other.max_length) if x is not None]
        return StringFacets(
            max(self.min_length, other.min_length),
            min(tops) if tops else None,
            self.patterns | other.patterns,
            self.not_patterns | other.not_patterns,
            self.formats | other.formats,
            self.not_formats | other.not_formats,
            self.excluded | other.excluded,
        )

    @property
    def exact(self) -> bool:
        """Every format that is asked not to hold is one whose complement is exact."""
        return all((found := formats.find(name)) is not None and found.exact for name in self.not_formats)

    def complement(self, pointer: str = "#", keyword: str = "not", *, forbidden: bool = False) -> tuple[StringFacets, ...]:
        """Facets whose union is every other text, but for those in `excluded`: these are a finite set of their own.

        forbidden: the texts are only to be kept out, so that it does not matter if a few more are.
        Raises UnsupportedSchema for a format whose complement is not exact (see formats.py).
        """
        out = []
        if self.min_length > 0:
            out.append(StringFacets(max_length=self.min_length - 1))
        if self.max_length is not None:
            out.append(StringFacets(min_length=self.max_length + 1))
        out += [StringFacets(not_patterns=frozenset([p])) for p in sorted(self.patterns)]
        out += [StringFacets(patterns=frozenset([p])) for p in sorted(self.not_patterns)]
        for name in sorted(self.formats):
            found = formats.find(name)
            if not forbidden and (found is None or not (found.exact or found.widest)):
                raise UnsupportedSchema(pointer, keyword, f"the texts that are not of the format {name!r} are not known exactly")
            out.append(StringFacets(not_formats=frozenset([name])))
        out += [StringFacets(formats=frozenset([name])) for name in sorted(self.not_formats)]
        return tuple(out)

    def contains(self, text: str) -> bool:
        if len(text) < self.min_length or (self.max_length is not None and len(text) > self.max_length) or text in self.excluded:
            return False
        return self.lengths_only or (all(text.startswith(beginning(p)) for p in self.patterns) and text in self.texts)

    def is_empty(self) -> bool:
        """No text is in the set. Exact, but for searches beyond texts.MAX_STATES, which count as non-empty."""
        if self.max_length is not None and self.min_length > self.max_length:
            return True
        if not (self.patterns or self.not_patterns or self.formats or self.not_formats) and self.max_length != 0 and len(self.excluded) < CHARACTERS:
            return False
        return not self.lengths_only and not self._plainly_inhabited() and self.texts.is_empty()

    def _plainly_inhabited(self) -> bool:
        """Members are to be seen without a search: one pattern or format says all there is to say (every format has some), or little is left out."""
        if self.only_format is not None:
            return True
        if not (self.patterns or self.formats or self.not_formats) and self.max_length != 0 and all(map(beginning, self.not_patterns)):
            return len(self.not_patterns) + len(self.excluded) < CHARACTERS  # texts that begin with another character than any that is left out
        trees = self.wanted()
        if len(trees) != 1 or self.not_patterns or self.not_formats or self.excluded or not trees[0].inhabited:
            return False
        lo, hi = self.lengths()
        run = _clipped(trees[0], lo, hi)
        return run != ast.NEVER if run is not None else _within(trees[0].widths, lo, hi)

    def count_up_to(self, limit: int) -> int:
        """How many texts are in the set, but at most `limit`."""
        return self.texts.count_up_to(limit)

    @cached_property
    def texts(self) -> TextSet:
        """The set itself, for questions about its members."""
        return _texts(self)

    def wanted(self) -> list[Tree]:
        return [_pattern_tree(p) for p in sorted(self.patterns)] + [_format(f).tree() for f in sorted(self.formats)]

    def unwanted(self, *, excluded: bool = True) -> list[Tree]:
        trees = [_pattern_tree(p) for p in sorted(self.not_patterns)] + [_format(f).widest_tree() for f in sorted(self.not_formats)]
        if self.excluded and excluded:
            trees.append(ast.alt(*(ast.seq(*(Chars(CharSet.of(c)) for c in text)) for text in sorted(self.excluded))))
        return trees

    def lengths(self) -> tuple[int, int | None]:
        """Bounds of the length, those of formats included."""
        tops = [self.max_length, *(formats.find(name).max_length for name in self.formats)]  # type: ignore[union-attr]
        given = [t for t in tops if t is not None]
        return self.min_length, min(given) if given else None


@lru_cache(maxsize=1024)
def _texts(facets: StringFacets) -> TextSet:
    return TextSet(facets.wanted(), facets.unwanted(), *facets.lengths())


settings.on_clear(_pattern_tree.cache_clear)
settings.on_clear(_texts.cache_clear)
settings.on_clear(beginning.cache_clear)


def _format(name: str) -> formats.Format:
    found = formats.find(name)
    if found is None:
        raise ValueError(f"{name!r} is an annotation, not a format that can be enforced")
    return found


def string_node(builder: Builder, facets: StringFacets) -> Node:
    """The quoted strings of the set; EMPTY if the lengths contradict each other or a pattern matches nothing."""
    return builder.named(("quoted", facets), lambda: _quoted(builder, string_content(builder, facets, key=False)))


def _quoted(b: Builder, content: Node) -> Node:
    quote = b.literal(b'"')
    return b.seq(quote, content, quote)


def string_content(builder: Builder, facets: StringFacets, *, key: bool = True) -> Node:
    """What stands between the quotes. key: the canonical spelling throughout, as object keys need."""
    alphabet = JSON_FULL if facets.lengths_only and not key else JSON
    form = facets.only_format
    if form is not None:
        return include(builder, _format_program(form, alphabet))
    return builder.named(("string", facets, alphabet), lambda: _content(builder, facets, alphabet))


@cache
def _format_program(name: str, alphabet: Alphabet) -> Program:
    """The texts of a format, made once per process."""
    builder = Builder()
    return builder.program(_content(builder, StringFacets(formats=frozenset([name])), alphabet))


def _content(b: Builder, facets: StringFacets, alphabet: Alphabet) -> Node:
    lo, hi = facets.lengths()
    if hi is not None and lo > hi:
        return b.EMPTY
    trees = facets.wanted()
    parts: list[Node] = []
    bounded = lo == 0 and hi is None
    for tree in trees:
        run = None if bounded else _clipped(tree, lo, hi)
        bounded = bounded or run is not None or _within(tree.widths, lo, hi)
        parts.append(lower(b, tree if run is None else run, alphabet))
    if not bounded or not parts:
        parts.append(b.repeat(alphabet.chars(b, SCALARS), lo, hi))
    parts += [b.complement(lower(b, tree, alphabet)) for tree in facets.unwanted(excluded=False)]
    if facets.excluded:
        parts.append(b.complement(b.trie(json_escape(text) for text in facets.excluded if spellable(text))))
    return b.both(*parts)


def _within(widths: tuple[int, int | None], lo: int, hi: int | None) -> bool:
    """Do the lengths follow from the tree?"""
    least, most = widths
    return least >= lo and (hi is None or (most is not None and most <= hi))


def _clipped(tree: Tree, lo: int, hi: int | None) -> Tree | None:
    """A run of one class with its count clipped to the lengths, or None if the tree is not such a run."""
    run = tree if isinstance(tree, Repeat) else Repeat(tree, 1, 1)
    if not isinstance(run.body, Chars):
        return None
    top = hi if run.hi is None else run.hi if hi is None else min(hi, run.hi)
    low = max(lo, run.lo)
    return ast.NEVER if top is not None and low > top else ast.repeat(run.body, low, top)


def string_trie(builder: Builder, texts: Iterable[str]) -> Node:
    """One of many strings, quoted, in their canonical spellings."""
    return builder.trie(b'"' + json_escape(text) + b'"' for text in texts)
