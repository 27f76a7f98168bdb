"""The weights in an ONNX file, read without running anything and without further packages.

An ONNX file is a protobuf message: fields of a number, a kind and a value. Weights are the initialisers of the graph
(``ModelProto.graph.initializer``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mpfm_kedro.errors import InputError

GRAPH, INITIALISER = 7, 5  # numbers of fields: in ModelProto, in GraphProto
DIMENSION, TYPE, NAME, CONTENT = 1, 2, 8, 9  # in TensorProto
FP32 = 1
VARINT, EIGHT_BYTES, LENGTH, FOUR_BYTES = 0, 1, 2, 5  # kinds of values


def read_initialisers(path: Path) -> dict[str, Tensor]:
    """The fp32 tensors of the graph by name, in the order of the file."""
    tensors = {}
    for number, graph in _fields(memoryview(path.read_bytes())):
        if number == GRAPH:
            for inner, message in _fields(graph):
                if inner == INITIALISER:
                    name, tensor = _tensor(message)
                    tensors[name] = tensor
    return tensors


def _tensor(message: memoryview) -> tuple[str, Tensor]:
    fields = list(_fields(message))
    shape = [value for number, value in fields if number == DIMENSION]
    values = dict(fields)
    name, content = str(values[NAME], "utf-8"), values.get(CONTENT, memoryview(b""))
    if values[TYPE] != FP32 or len(content) != 4 * math.prod(shape):
        raise InputError(f"Tensor '{name}' of the ONNX file is not one of 32-bit numbers")
    return name, torch.frombuffer(bytearray(content), dtype=torch.float32).reshape(shape)


def _fields(message: memoryview) -> Iterator[tuple[int, Any]]:
    """Number and value (a whole number or bytes) of each field of a protobuf message."""
    position = 0
    while position < len(message):
        tag, position = _varint(message, position)
        kind = tag & 7
        if kind == VARINT:
            value, position = _varint(message, position)
            yield tag >> 3, value
            continue
        if kind == LENGTH:
            size, position = _varint(message, position)
        else:
            size = {EIGHT_BYTES: 8, FOUR_BYTES: 4}[kind]
        yield tag >> 3, message[position : position + size]
        position += size


def _varint(message: memoryview, position: int) -> tuple[int, int]:
    """A whole number, seven bits per byte, the lowest first; and the position after it."""
    value = shift = 0
    while True:
        byte = message[position]
        value |= (byte & 127) << shift
        position, shift = position + 1, shift + 7
        if byte < 128:
            return value, position
