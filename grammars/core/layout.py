"""Layout of the arena: one int32 array that holds every state a grammar has reached.

    header | nodes | node hash | transition memo | dense rows | scratch stack | pool

The header says where each section starts and how full it is; all references inside are section-relative, so the
array can be moved to a larger one. A node is a record of STRIDE integers; equal nodes are one node, so a parse
state, a continuation (stack) and a position inside a token tree are all plain node numbers that never change.
Knows nothing of tokens, tokenizers or schemas.

    op        a            b          c           d        e        f
    CLASS     pool: 8 x 32 bits
    LITERAL   pool: bytes  length
    SEQ       first        rest                              (right-nested: the rest is the parse stack)
    ALT       pool: nodes  count                             (sorted)
    AND       pool: nodes  count      reach                  (sorted; reach: 0 or 1 + bytes that can end it, an upper bound)
    REPEAT    child        lo         hi (-1: no bound)
    NOT       child
    CALL      pool: [body, nullable, shortest completion]
    SPECIAL   symbol - 256
    TRIE      pool: trie node
    OBJECT    definition   key set    phase                  (before a key, after a value, after a comma)
    KEY       definition   key set    trie node              (inside a declared key)
    EXTRAKEY  definition   key set    trie node   rest       path     family    (inside an undeclared key)
    KEYSET    pool: record length                            (which keys an object has so far)
    PATH      parent       byte                              (the undeclared key written so far)
    BYTES     pool: bytes  length                            (interned content of literals and classes)
    AHEAD     settled      ends       begun                  (looks at what follows; begun: has read some of it)
    CLOSED    child                                          (ends what AHEADs in it see)
    DISTINCT  inside       item       used        demand     (inside of an array, no two items equal; used: LINK of those before)
    DEMAND    inside       least                             (how it began; items that may run out and are asked for)
    ITEM      tied         frame      mode        text       length   escape    (the item being read, see distinct.py)
    FRAME     outer        kind       members     name       count              (an array or object of that item, not closed yet)
    LINK      before       value      count                  (values one after the other)
    VALUE     kind         content    exponent    negative   (a JSON value: equal ones are one node)
    LIST      pool: nodes  count                             (of a VALUE: items, or names and values by name)
"""

# header slots
H_NODES, H_NODE_COUNT, H_NODE_CAP = 0, 1, 2
H_HASH, H_HASH_MASK = 3, 4
H_MEMO, H_MEMO_COUNT, H_MEMO_MASK = 5, 6, 7
H_ROWS, H_ROW_COUNT, H_ROW_CAP = 8, 9, 10
H_SCRATCH, H_SCRATCH_TOP, H_SCRATCH_CAP = 11, 12, 13
H_POOL, H_POOL_COUNT, H_POOL_CAP = 14, 15, 16
H_STATUS, H_DEPTH, H_EPOCH, H_BANK_USED = 17, 18, 19, 20
H_SIZE = 32

# H_STATUS: 0, or why a kernel stopped. The first six mean "make that section larger and call again".
OK, FULL_NODES, FULL_MEMO, FULL_ROWS, FULL_SCRATCH, FULL_POOL, FULL_BANK, TOO_DEEP, TOO_MANY_STATES = range(9)

# a node's record
STRIDE = 16
N_OP, N_A, N_B, N_C, N_D, N_E, N_F, N_FLAGS, N_NEED, N_ROW, N_MASK, N_TOKENS, N_PRUNED, N_HEAD, N_MARK, N_PLACE = range(16)

NULLABLE, CHECK, WIDE, ALIVE, DEAD, ENDLESS, PLAIN, KEYED, CALLS, LOOSE, LOOKS, DISTINCT, TIED = (1 << i for i in range(13))
"""Flags: matches the empty text | an intersection or complement is being read: check that it can still end well |
many bytes may follow (worth a dense transition row) | known to be able to end | known not to |
certain to have infinitely many texts | no rules, objects, keys or special tokens anywhere in it: a walk of it serves
whatever follows | an undeclared key may be being read | a rule is called somewhere in it, objects not counted |
a choice whose members may have heads in common | an AHEAD may stand somewhere in it, CLOSED parts not counted |
items that must differ may be being read | and the one being read may still come to equal an earlier one."""

EMPTY, EPSILON, ALL, ANONYMOUS = 0, 1, 2, 3
"""Nodes that are always there. ALL: every byte string; ANONYMOUS: the PATH of a key whose characters are not kept."""

(
    A_EMPTY,
    A_EPSILON,
    A_CLASS,
    A_LITERAL,
    A_SEQ,
    A_ALT,
    A_REPEAT,
    A_AND,
    A_NOT,
    A_CALL,
    A_SPECIAL,
    A_TRIE,
    A_OBJECT,
    A_KEY,
    A_EXTRAKEY,
    A_KEYSET,
    A_PATH,
    A_BYTES,
    A_AHEAD,
    A_CLOSED,
    A_DISTINCT,
    A_ITEM,
    A_FRAME,
    A_LINK,
    A_VALUE,
    A_LIST,
    A_DEMAND,
) = range(27)

FIRST, AFTER, NEXT = 0, 1, 2  # phases of an OBJECT: before its first key | after a value | after a comma

# object definition in the pool
(
    O_FIELDS,
    O_EXTRAS,
    O_ORDER,
    O_MIN,
    O_MAX,
    O_COLON,
    O_COMMA,
    O_CLOSE,
    O_TAIL,
    O_TRIE,
    O_FIELD,
    O_EXTRA,
    O_REQUIRED,
    O_WORDS,
    O_NEXT_REQUIRED,
    O_DFS,
    O_NEEDS,
    O_SIZE,
) = range(18)
FIELD_SIZE = 3  # value, required, key length
EXTRA_SIZE = 3  # key language, value, whether O_NEEDS asks for it

# trie node in the pool: which text ends here (-1: none), range of texts below in sorted order, depth,
# bytes to the nearest end of a text, children (byte, node)...
T_TEXT, T_LO, T_HI, T_DEPTH, T_NEED, T_COUNT, T_CHILDREN = 0, 1, 2, 3, 4, 5, 6

INFINITE = 1 << 29  # "no completion"
MAX_DEPTH = 1500  # nested derivatives (rules calling rules before any byte); more means left recursion
MAX_STATES = 20_000  # states visited to decide whether an intersection is empty

# vocabulary array: a header, then the token trie in depth-first order and the bytes of each token
(
    V_NODES,  # trie nodes
    V_BYTE,  # [nodes] byte on the edge into the node
    V_DEPTH,  # [nodes] 0 for the first byte of a token
    V_SKIP,  # [nodes] next node outside this subtree
    V_PARENT,  # [nodes] -1 at the top
    V_FIRST,  # [nodes + 1] where the node's tokens begin in V_IDS
    V_IDS,
    V_MAX_DEPTH,  # longest token in bytes
    V_TOKENS,  # ids, 0 ... V_TOKENS - 1
    V_START,  # [tokens + 1] where a token's bytes begin in V_BYTES
    V_BYTES,
    V_WORDS,  # words of a mask row
    V_STOPS,
    V_STOP_COUNT,
    V_ROOT,  # [256] top node by byte, -1: no token begins with it
    V_ALPHABET,  # [8] bits of the bytes that occur in some token
    V_COMPLETE,  # 1 if each byte that occurs is a token by itself
    V_SPECIAL_COUNT,
    V_SPECIALS,  # token id of special symbol k, -1: not in this vocabulary
    V_AT,  # [257] where the nodes of each byte begin in V_BY_BYTE
    V_BY_BYTE,  # [nodes] trie nodes ordered by byte
    V_LONG_COUNT,  # tokens that may close a key, hold a whole value and open another key
    V_LONG,  # their ids
    V_COMMA,  # ids of the tokens with a comma in them, those with a quote before a comma first
    V_COMMA_COUNT,
    V_QUOTED_COUNT,  # how many of them have a quote before a comma
) = range(26)
V_HEADER = 26
