"""Grammars on a GPU: the part of an arena that has been handed over as tables, and the kernels that walk it. Needs torch."""
