"""Representations of a decoder's matrices other than plain float32: half precision, and blocks of 8 or 4 bits."""
