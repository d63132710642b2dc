"""The engine's steps where a GPU holds the model.

runner.py takes the place of engine/runner.py: a step's plan in, rows of logits out, through decoder.py and attention.py. While all
requests decode token by token, decoding.py drives step.py instead, which also masks, samples and moves grammars without the host.
The kernels are in kernels/gpu/ and grammars/kernels/, each beside a reference in torch, with which all of this runs on a CPU as well.
"""
