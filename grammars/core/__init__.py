"""The compiled core: everything that runs while tokens are decoded, in numba over flat int32 arrays.

layout   where things stand in the arena        derive   derivative of a node by a symbol
nodes    hash-consed nodes in normal form       objects  keys of JSON objects
lower    a Program becomes nodes                search   emptiness, shortest completions
masks    walks of the token trie                kernels  the entry points that Python calls
"""
