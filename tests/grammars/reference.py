"""A slow matcher over a Program, written to be obviously right: the oracle of the compiled core.

Brzozowski derivatives of hash-consed tuples. Input: a Program (or a Builder and a root). It knows nothing of tokens,
caches nothing across grammars and has no limits: use it on small texts.

`accepts(program, data)`: is `data` a member?  `prefix_ok(program, data)`: can `data` be extended to one?
`data` is bytes, or a sequence whose entries are byte values and names of special tokens.
Random programs for differential tests are in random_programs.py.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Iterator, Sequence
from fractions import Fraction
from functools import cache, cached_property

from agentkit.grammars import expr
from agentkit.grammars.expr import Program

EMPTY, EPSILON = ("empty",), ("eps",)
Text = Sequence[int | str]


class Reference:
    """The language of one program. Expressions are nested tuples whose first entry names the operator.

    present: the special tokens that the vocabulary has; None: all that the program names.
    """

    def __init__(self, program: Program, present: Sequence[str] | None = None) -> None:
        self.program = program
        self.present = program.specials if present is None else tuple(present)
        self.blob = program.blob.tobytes()
        self.code = program.code.tolist()
        self.node = cache(self._node)
        self.nullable_rules = self._fixpoint(self._nullable)
        self.productive_rules = self._fixpoint(self._nonempty)
        self.derive = cache(self._derive)
        self.root = self.node(program.root)

    # -- reading the program ------------------------------------------------------------------------------------

    def _node(self, i: int) -> tuple:
        c, at = self.code, int(self.program.starts[i])
        op = c[at]
        if op == expr.OP_EMPTY:
            return EMPTY
        if op == expr.OP_EPSILON:
            return EPSILON
        if op == expr.OP_CLASS:
            bits = int.from_bytes(self.blob[c[at + 1] : c[at + 1] + 32], "little")
            return ("class", frozenset(b for b in range(256) if bits >> b & 1))
        if op == expr.OP_LITERAL:
            return text_of(self.blob[c[at + 1] : c[at + 1] + c[at + 2]])
        if op in (expr.OP_SEQ, expr.OP_ALT, expr.OP_AND):
            parts = [self.node(n) for n in c[at + 2 : at + 2 + c[at + 1]]]
            return {expr.OP_SEQ: seq, expr.OP_ALT: alt, expr.OP_AND: both}[op](*parts)
        if op == expr.OP_REPEAT:
            return repeat(self.node(c[at + 1]), c[at + 2], None if c[at + 3] < 0 else c[at + 3])
        if op == expr.OP_NOT:
            return negate(self.node(c[at + 1]))
        if op == expr.OP_CALL:
            return ("call", c[at + 1])
        if op == expr.OP_SPECIAL:
            return ("class", frozenset([self.program.specials[c[at + 1]]]))
        if op == expr.OP_ABSENT:
            return EMPTY if self.program.specials[c[at + 1]] in self.present else EPSILON
        if op == expr.OP_TRIE:
            spots = [(c[at + 2 + 2 * k], c[at + 3 + 2 * k]) for k in range(c[at + 1])]
            return alt(*(text_of(self.blob[o : o + n]) for o, n in spots))
        if op == expr.OP_DISTINCT:
            return distinct(self.node(c[at + 1]), ())
        assert op == expr.OP_MEMBERS, op
        return self._members(at)

    def _members(self, at: int) -> tuple:
        c = self.code
        fields, extras, order, lo, hi, *separators = c[at + 1 : at + 10]
        at += 10
        spec = []
        for _ in range(fields):
            offset, size, value, required = c[at : at + 4]
            spec.append((self.blob[offset : offset + size], self.node(value), bool(required)))
            at += 4
        more = [(self.node(c[at + 3 * k]), self.node(c[at + 1 + 3 * k]), bool(c[at + 2 + 3 * k])) for k in range(extras)]
        rules = (tuple(spec), tuple(more), order, lo, None if hi < 0 else hi, *(self.node(s) for s in separators))
        return ("members", rules, frozenset(), 0, any(asked for _, _, asked in more))

    # -- nullability and emptiness ------------------------------------------------------------------------------

    def _fixpoint(self, test) -> tuple[bool, ...]:
        known = (False,) * len(self.program.rules)
        while True:
            new = tuple(test(self.node(int(r)), known) for r in self.program.rules)
            if new == known:
                return known
            known = new

    def nullable(self, e: tuple) -> bool:
        return self._nullable(e, self.nullable_rules)

    def _nullable(self, e: tuple, rules: tuple[bool, ...]) -> bool:
        op = e[0]
        if op in ("eps", "empty", "class", "members", "key"):
            return op == "eps"
        if op in ("seq", "and"):
            return all(self._nullable(x, rules) for x in e[1])
        if op == "alt":
            return any(self._nullable(x, rules) for x in e[1])
        if op == "rep":
            return e[2] == 0 or self._nullable(e[1], rules)
        if op == "not":
            return not self._nullable(e[1], rules)
        return self._nullable(e[1], rules) if op == "distinct" else rules[e[1]]

    def nonempty(self, e: tuple) -> bool:
        return self._nonempty(e, self.productive_rules)

    def _nonempty(self, e: tuple, rules: tuple[bool, ...]) -> bool:
        op = e[0]
        if op in ("eps", "empty", "class"):
            return op != "empty"
        if op == "seq":
            return all(self._nonempty(x, rules) for x in e[1])
        if op == "alt":
            return any(self._nonempty(x, rules) for x in e[1])
        if op == "rep":
            return e[2] == 0 or self._nonempty(e[1], rules)
        if op == "distinct":
            return self._nonempty(e[1], rules)
        if op in ("and", "not"):
            return next(self.words(e), None) is not None
        if op == "members":
            return self._members_nonempty(e, rules)
        if op == "key":
            return any(self._members_nonempty(after, rules) for _, after in self._key_ends(e, rules))
        return rules[e[1]]

    def words(self, e: tuple) -> Iterator[bytes]:
        """Members of a language without rules or objects, shortest first, each once. Exact: ends when there are no more."""
        derive, seen_dead = cache(self._derive), {}
        level: list[tuple[bytes, tuple]] = [(b"", e)]
        while level:
            following = []
            for text, state in level:
                if self.nullable(state):
                    yield text
                for symbol in self.alphabet:
                    after = derive(state, symbol)
                    if after not in seen_dead:
                        seen_dead[after] = not self._live(after, derive)
                    if not seen_dead[after]:
                        following.append((text + bytes([symbol]), after))
            level = following

    def _live(self, e: tuple, derive) -> bool:
        seen, todo = {e}, [e]
        while todo:
            state = todo.pop()
            if self.nullable(state):
                return True
            for symbol in self.alphabet:
                after = derive(state, symbol)
                if after not in seen and after != EMPTY:
                    seen.add(after)
                    todo.append(after)
        return False

    @cached_property
    def alphabet(self) -> tuple[int, ...]:
        """One byte of every set of bytes that the program cannot tell apart."""
        signature: dict[tuple, int] = {}
        sets = [e[1] for e in self._classes()]
        for b in range(256):
            signature.setdefault(tuple(b in s for s in sets), b)
        return tuple(signature.values())

    def _classes(self) -> set[tuple]:
        found = {text_of(b'"')}
        todo = [self.node(i) for i in range(len(self.program.starts))]
        while todo:
            e = todo.pop()
            if e[0] == "class":
                found.add(e)
            elif e[0] in ("seq", "alt", "and"):
                todo.extend(e[1])
            elif e[0] in ("rep", "not", "distinct"):
                todo.append(e[1])
            elif e[0] == "members":
                todo += [text_of(key) for key, _, _ in e[1][0]]
        return found

    # -- objects ------------------------------------------------------------------------------------------------
    # ("members", rules, names seen, members so far, whether an undeclared member that is asked for is still missing)
    # ("key", members, bytes of the key so far)

    def _usable(self, members: tuple, rules: tuple[bool, ...]) -> Iterator[tuple[bytes, tuple]]:
        """Declared keys that may come next, with their values."""
        spec, _, order, _, hi, *_ = members[1]
        seen, count = members[2], members[3]
        if hi is not None and count >= hi:
            return
        start = 0
        if order == expr.DECLARED:
            start = max((i + 1 for i, (key, _, _) in enumerate(spec) if key in seen), default=0)
        for key, value, required in spec[start:]:
            if key not in seen and self._nonempty(value, rules):
                yield key, value
            if order == expr.DECLARED and required:
                return

    def _extras(self, members: tuple) -> tuple[tuple[tuple, tuple], ...]:
        spec, more, order, _, hi, *_ = members[1]
        if hi is not None and members[3] >= hi:
            return ()
        if order == expr.DECLARED and any(required and key not in members[2] for key, _, required in spec):
            return ()
        return more

    def _taken(self, members: tuple) -> set[bytes]:
        return {key for key, _, _ in members[1][0]} | set(members[2])

    def _after(self, members: tuple, key: bytes, asked: bool = False) -> tuple:
        return ("members", members[1], members[2] | {key}, members[3] + 1, members[4] and not asked)

    def _members_nonempty(self, m: tuple, rules: tuple[bool, ...]) -> bool:
        spec, _more, order, lo, hi, colon, comma, close, _ = m[1]
        if not all(self._nonempty(s, rules) for s in (colon, comma, close)):
            return False
        wanted = [(k, v) for k, v, required in spec if required and k not in m[2]]
        if any(not self._nonempty(v, rules) for _, v in wanted):
            return False
        if order == expr.DECLARED:
            start = max((i + 1 for i, (key, _, _) in enumerate(spec) if key in m[2]), default=0)
            if any(spec[i][2] and spec[i][0] not in m[2] for i in range(start)):
                return False
            left = sum(self._nonempty(v, rules) for _, v, _ in spec[start:])
        else:
            left = sum(key not in m[2] and self._nonempty(v, rules) for key, v, _ in spec)
        if hi is not None and m[3] + len(wanted) + m[4] > hi:
            return False
        if m[4] and not self._spare_names(m, 1, rules, asked=True):
            return False
        short = lo - m[3] - left
        return short <= 0 or self._spare_names(m, short, rules)

    def _spare_names(self, m: tuple, wanted: int, rules: tuple[bool, ...], asked: bool = False) -> bool:
        keys = alt(*(key for key, value, is_asked in m[1][1] if is_asked >= asked and self._nonempty(value, rules)))
        taken = self._taken(m)
        for word in self.words(keys):
            wanted -= word not in taken
            if wanted <= 0:
                return True
        return False

    def _key_ends(self, e: tuple, rules: tuple[bool, ...]) -> Iterator[tuple[bytes, tuple]]:
        """Some keys that begin with the bytes so far: every declared one, and one undeclared one."""
        _, m, so_far = e
        for key, _ in self._usable(m, rules):
            if key.startswith(so_far):
                yield key, self._after(m, key)
        taken = self._taken(m)
        for key, value, asked in self._extras(m):
            if not self._nonempty(value, rules):
                continue
            for b in so_far:
                key = self._derive(key, b)
            found = next((w for w in self.words(key) if so_far + w not in taken), None)
            if found is not None:
                yield so_far + found, self._after(m, so_far + found, asked)

    def _derive_members(self, m: tuple, c: int | str) -> tuple:
        spec, _, _, lo, _, _, comma, close, tail = m[1]
        lead = EPSILON if m[3] == 0 else tail
        options = []
        if m[3] >= lo and not m[4] and all(key in m[2] for key, _, required in spec if required):
            options.append(seq(lead, close))
        key = seq(text_of(b'"'), ("key", m, b""))
        options.append(key if m[3] == 0 else seq(lead, comma, key))
        return self._derive(alt(*options), c)

    def _derive_key(self, e: tuple, c: int | str) -> tuple:
        _, m, so_far = e
        rules = self.productive_rules
        colon = m[1][5]
        options = []
        if c == ord('"'):
            values = [(value, False) for key, value in self._usable(m, rules) if key == so_far]
            if so_far not in self._taken(m):
                values += [(value, asked) for key, value, asked in self._extras(m) if self._matches(key, so_far)]
            options += [seq(colon, value, self._after(m, so_far, asked)) for value, asked in values]
        if isinstance(c, int):
            longer = ("key", m, so_far + bytes([c]))
            if next(self._key_ends(longer, rules), None) is not None:
                options.append(longer)
        return alt(*options)

    def _matches(self, e: tuple, data: Text) -> bool:
        for c in data:
            e = self._derive(e, c)
        return self.nullable(e)

    # -- derivatives --------------------------------------------------------------------------------------------

    def _derive(self, e: tuple, c: int | str) -> tuple:
        op = e[0]
        if op in ("eps", "empty"):
            return EMPTY
        if op == "class":
            return EPSILON if c in e[1] else EMPTY
        if op == "seq":
            head, rest = e[1][0], seq(*e[1][1:])
            first = seq(self._derive(head, c), rest)
            return alt(first, self._derive(rest, c)) if self.nullable(head) else first
        if op == "alt":
            return alt(*(self._derive(x, c) for x in e[1]))
        if op == "and":
            return both(*(self._derive(x, c) for x in e[1]))
        if op == "not":
            return EMPTY if isinstance(c, str) else negate(self._derive(e[1], c))
        if op == "rep":
            _, x, lo, hi = e
            return seq(self._derive(x, c), repeat(x, max(lo - 1, 0), None if hi is None else hi - 1))
        if op == "distinct":
            return distinct(self._derive(e[1], c), (*e[2], c))
        if op == "call":
            return self._derive(self.node(int(self.program.rules[e[1]])), c)
        return self._derive_members(e, c) if op == "members" else self._derive_key(e, c)

    def residual(self, data: Text) -> tuple:
        state = self.root
        for c in data:
            state = self.derive(state, c)
        return state


def distinct(inside: tuple, read: Text) -> tuple:
    """An array whose items differ, of which `read` has been read; that an item repeats is seen when the next byte ends it."""
    if inside in (EMPTY, EPSILON) and not read:
        return inside
    items = _items(bytes(read))
    return EMPTY if inside == EMPTY or len(set(items)) < len(items) else EPSILON if inside == EPSILON else ("distinct", inside, read)


def _items(read: bytes) -> list[Hashable]:
    """The values of the items that are complete."""
    items, begin, depth, in_text = [], 0, 0, False
    for i, byte in enumerate(read):
        if byte == 34 and (len(read[:i]) - len(read[:i].rstrip(b"\\"))) % 2 == 0:
            in_text = not in_text
        elif not in_text:
            depth += (byte in b"[{") - (byte in b"]}")
            if (byte == 44 and depth == 0) or depth < 0:
                if read[begin:i].strip():
                    items.append(_comparable(json.loads(read[begin:i], parse_float=Fraction, parse_int=Fraction)))
                begin = i + 1
    return items


def _comparable(value: object) -> Hashable:
    """Equal for equal JSON values, and only for these."""
    if isinstance(value, dict):
        return frozenset((name, _comparable(v)) for name, v in value.items())
    return tuple(map(_comparable, value)) if isinstance(value, list) else (type(value), value)


def text_of(data: Iterable[int]) -> tuple:
    return seq(*(("class", frozenset([b])) for b in data))


def seq(*parts: tuple) -> tuple:
    flat: list[tuple] = []
    for p in parts:
        if p == EMPTY:
            return EMPTY
        flat.extend(p[1] if p[0] == "seq" else () if p == EPSILON else (p,))
    return EPSILON if not flat else flat[0] if len(flat) == 1 else ("seq", tuple(flat))


def alt(*parts: tuple) -> tuple:
    flat = frozenset(x for p in parts for x in (p[1] if p[0] == "alt" else (p,)) if x != EMPTY)
    if ("not", EMPTY) in flat:
        flat = frozenset(x for x in flat if x == ("not", EMPTY) or not _is_text(x))
    return EMPTY if not flat else next(iter(flat)) if len(flat) == 1 else ("alt", flat)


def _is_text(x: tuple) -> bool:
    """Certainly without special tokens."""
    if x[0] == "class":
        return all(isinstance(c, int) for c in x[1])
    if x[0] in ("seq", "alt", "and"):
        return all(map(_is_text, x[1]))
    return _is_text(x[1]) if x[0] == "rep" else x[0] in ("eps", "empty", "not")


def both(*parts: tuple) -> tuple:
    flat = frozenset(x for p in parts for x in (p[1] if p[0] == "and" else (p,)) if x != ("not", EMPTY))
    if EMPTY in flat:
        return EMPTY
    return ("not", EMPTY) if not flat else next(iter(flat)) if len(flat) == 1 else ("and", flat)


def negate(x: tuple) -> tuple:
    return x[1] if x[0] == "not" else ("not", x)


def repeat(x: tuple, lo: int, hi: int | None) -> tuple:
    if hi == 0 or x == EPSILON:
        return EPSILON
    if x == EMPTY:
        return EPSILON if lo == 0 else EMPTY
    return x if (lo, hi) == (1, 1) else ("rep", x, lo, hi)


def _of(program: Program | Reference) -> Reference:
    return program if isinstance(program, Reference) else Reference(program)


def accepts(program: Program | Reference, data: Text) -> bool:
    """Is `data` a member of the language? Pass a Reference to reuse its work over many texts."""
    ref = _of(program)
    return ref.nullable(ref.residual(data))


def prefix_ok(program: Program | Reference, data: Text) -> bool:
    """Can `data` be extended to a member (or is it one)?"""
    ref = _of(program)
    return ref.nonempty(ref.residual(data))


def language(program: Program | Reference, limit: int, alphabet: bytes | None = None) -> set[bytes]:
    """All members of at most `limit` bytes, over one byte of each distinguishable set (or over `alphabet`)."""
    ref = _of(program)
    symbols = ref.alphabet if alphabet is None else tuple(alphabet)
    found, level = set(), [(b"", ref.root)]
    for size in range(limit + 1):
        found |= {text for text, state in level if ref.nullable(state)}
        if size == limit:
            break
        grown = [(text + bytes([b]), ref.derive(state, b)) for text, state in level for b in symbols]
        level = [(text, state) for text, state in grown if state != EMPTY]
    return found
