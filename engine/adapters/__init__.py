"""Low-rank adapters (LoRA, arXiv:2106.09685) that requests choose: files of PEFT in, changes to a decoder's products out.

peft.py reads what a file says, files.py finds and checks it, adapter.py is what comes of it, loaded.py knows those of an engine by name,
and rows.py (torch) and stacks.py (a device's kernels) put them beside the matrices of a forward.
"""
