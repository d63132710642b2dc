"""The compiled core: everything that runs while tokens are decoded, in numba over flat int32 arrays.

layout   where things stand in the arena        nodes    hash-consed nodes, sequences, repeats
combine  choices, intersections, complements    objects  keys of JSON objects
derive   derivative of a node by a symbol       search   emptiness, shortest completions
lower    a Program becomes nodes                runs     masks of runs of characters
masks    walks of the token trie                kernels  the entry points that Python calls
"""
