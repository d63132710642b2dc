"""What happens to single rows between the matrices: embedding, norms, rotary positions, activations."""

from __future__ import annotations

import math

import numpy as np

from agentkit.engine.kernels.layout import FAR
from agentkit.engine.kernels.library import inner
from agentkit.engine.kernels.tiles import LANES, WIDTH, add_weighed, gate_gelu_tanh, gate_silu, squares_of, turn_back, turn_forth, weigh_row

SILU, GELU_TANH, GELU = 0, 1, 2


@inner
def norm(x, x_at, size, weight, weight_at, eps, out, out_at):
    """RMS norm of x[0:size] times weight[0:size]. Beyond `size` both rows are zero up to a multiple of 8."""
    scale = np.float32(1.0) / np.float32(math.sqrt(squares_of(x, x_at, (size + LANES - 1) // LANES) / np.float32(size) + eps))
    octets = size // LANES
    weigh_row(x, x_at, weight, weight_at, octets, scale, out, out_at)
    for i in range(octets * LANES, size):
        out[out_at + i] = x[x_at + i] * scale * weight[weight_at + i]


@inner
def add_norm(y, y_at, size, weight, weight_at, eps, x, x_at):
    """x += RMS norm of y, the outer norm of a sandwich."""
    scale = np.float32(1.0) / np.float32(math.sqrt(squares_of(y, y_at, (size + LANES - 1) // LANES) / np.float32(size) + eps))
    octets = size // LANES
    add_weighed(y, y_at, weight, weight_at, octets, scale, x, x_at)
    for i in range(octets * LANES, size):
        x[x_at + i] += y[y_at + i] * scale * weight[weight_at + i]


@inner
def turn_table(position, frequencies, first, half, factor, out, out_at):
    """Cosines, then sines, of one position for one rotary embedding: out[0:half], out[half:2*half]."""
    for i in range(half):
        angle = np.float32(position) * frequencies[first + i]
        if position >= FAR:
            exact = np.float64(position) * np.float64(frequencies[first + i])
            angle = np.float32(exact - math.floor(exact / (2.0 * math.pi)) * (2.0 * math.pi))
        out[out_at + i] = np.float32(math.cos(angle)) * factor
        out[out_at + half + i] = np.float32(math.sin(angle)) * factor


@inner
def rotate(x, at, table, table_at, half):
    """One head in place: halves (a, b) -> (a cos - b sin, b cos + a sin)."""
    turn_forth(x, at, table, table_at, half, half // LANES)
    for i in range(half // LANES * LANES, half):
        a, b = x[at + i], x[at + half + i]
        cos, sin = table[table_at + i], table[table_at + half + i]
        x[at + i] = a * cos - b * sin
        x[at + half + i] = b * cos + a * sin


@inner
def rotate_back(x, at, table, table_at, half):
    """The inverse of `rotate` by the same table."""
    turn_back(x, at, table, table_at, half, half // LANES)
    for i in range(half // LANES * LANES, half):
        a, b = x[at + i], x[at + half + i]
        cos, sin = table[table_at + i], table[table_at + half + i]
        x[at + i] = a * cos + b * sin
        x[at + half + i] = b * cos - a * sin


@inner
def mix(x, at, size):
    """x[0:size] times the orthonormal Hadamard matrix, in blocks of the largest power of two that divides size; its own inverse."""
    block = size & -size
    factor = np.float32(1.0) / np.float32(math.sqrt(np.float32(block)))
    for i in range(size):
        x[at + i] *= factor
    half = 1
    while half < block:
        for begin in range(0, size, 2 * half):
            for i in range(at + begin, at + begin + half):
                a, b = x[i], x[i + half]
                x[i], x[i + half] = a + b, a - b
        half *= 2


@inner
def gate(kind, gates, ups, at, out, out_at):
    """out[0:32] = activation(gates[at:at+32]) * ups[at:at+32]."""
    if kind == SILU:
        gate_silu(gates, at, ups, at, WIDTH // LANES, out, out_at)
    elif kind == GELU_TANH:
        gate_gelu_tanh(gates, at, ups, at, WIDTH // LANES, out, out_at)
    else:
        for i in range(WIDTH):
            x = gates[at + i]
            out[out_at + i] = x * np.float32(0.5) * (np.float32(1.0) + np.float32(math.erf(x * np.float32(math.sqrt(0.5))))) * ups[at + i]
