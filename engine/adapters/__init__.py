"""Low-rank adapters (LoRA, arXiv:2106.09685) that requests choose: files of PEFT in, changes to a decoder's products out.

peft.py reads what a file says, files.py finds and checks it, adapter.py is what comes of it, loaded.py knows those of an engine by name. How they
are computed: rows.py puts them beside the matrices layer by layer (packed.py: by a kernel on the CPU), whole.py into the one kernel of a decoder in
blocks, stacks.py beside a device's kernels.
"""
