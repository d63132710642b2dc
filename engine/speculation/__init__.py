"""Speculation: guesses of the next tokens, checked by the model in one forward, without any change of the output.

The way of a draft: a `Proposer` guesses a `TokenTree` from what a request has so far (proposer.py and one module per way
of guessing), `constrain` cuts from it what the grammar forbids and puts in what it forces (constrain.py), `Pace` decides how
many tokens are worth their cost on this machine (pace.py), the scheduler appends the tree to the request's span, and
verify.py keeps what plain decoding would have chosen. Randomness belongs to the position of a token (sampling.py), so
sampled outputs, too, are the ones that plain decoding gives for the same seed.
"""
