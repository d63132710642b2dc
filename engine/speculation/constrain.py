"""What a grammar leaves of a token tree, and what it adds.

Input: guesses and the matcher of a request. Guesses that the grammar forbids are cut before they cost a forward. Where it leaves
no choice, the reference decoding takes the forced tokens without asking the model, so they are put into the tree and guesses
that spell the same bytes otherwise are dropped; a draft may thus span forced runs. Knows nothing of proposers or models.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentkit.engine.speculation.tree import ROOT, TokenTree

if TYPE_CHECKING:
    from agentkit.grammars import Matcher


def constrain(tree: TokenTree, matcher: Matcher, output: list[int], limit: int) -> TokenTree:
    """The part of `tree` that may follow, with forced runs put in, of at most `limit` nodes.

    matcher: stands behind `output`, the tokens generated so far; it is moved and brought back.
    """
    out = TokenTree()

    def visit(old: int, new: int, text: list[int]) -> None:
        for child in tree.children(old):
            token = tree.tokens[child]
            if len(out) >= limit:
                return
            if not matcher.allows(token):
                continue
            matcher.accept(token)
            if matcher.is_finished:  # a stop token: nothing follows, and the model says so itself
                matcher.rollback(1)
                continue
            run = matcher.forced_tokens([*text, token])[: limit - len(out) - 1]
            node, guess = tree.copy(child, out, new), child
            for forced in run:
                matcher.accept(forced)
                node = out.add(node, forced, forced=True)
                following = tree.child(guess, forced) if guess != LOST else None
                guess = LOST if following is None else following
            if guess != LOST:
                visit(guess, node, [*text, token, *run])
            matcher.rollback(1 + len(run))

    visit(ROOT, ROOT, output)
    return out


LOST = -2  # no guess left: the tree did not foresee what is forced
