"""Our kernels, which combine two tensors of a pair of GPUs, load and are exact to the bit.

All 18, on random numbers, zeros of both signs, infinities, subnormal ones and NaN, for counts that fill no block. The reference is
NumPy: sums in 32 bits, rounded once to nearest even; NaN is the quiet one with sign 0; of two zeros MAX takes the positive one,
MIN the negative one, as the instructions do. Nothing behind the last element is written. The time of 2 MiB is a figure.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from .cuda import Cuda, kernels
from .findings import Findings

#: As our program launches them.
_THREADS, _BLOCKS = 512, 64
_COUNTS = [1, 7, 513, _THREADS * _BLOCKS + 1, 300_007]
#: Elements behind the last one, which stay as they are.
_BEHIND = 16
_TIMED_BYTES, _TIMED_ROUNDS = 2 << 20, 20
_SCALES = {"sum": [1.0, 0.5, 1 / 3], "max": [1.0], "min": [1.0]}
_FLOATS = ("f32", "f16", "bf16")
_INTEGERS = {"i32": np.int32, "i64": np.int64, "u8": np.uint8}
_STORED = {"f32": np.uint32, "f16": np.uint16, "bf16": np.uint16}
_NAN = {"f32": 0x7FC00000, "f16": 0x7E00, "bf16": 0x7FC0}


def check(found: Findings) -> None:
    """Runs every kernel on every count."""
    cuda = Cuda()
    module, stream = cuda.module(kernels()), cuda.stream()
    for element in (*_FLOATS, *_INTEGERS):
        for operator, scales in _SCALES.items():
            name = f"{operator}_{element}"
            kernel = cuda.kernel(module, name)
            if kernel is None and cuda.is_stand_in:
                found.not_judged(name, "the stand-in has no code for it")
                continue
            if not found.holds(f"{name} is in the module", kernel is not None):
                continue
            assert kernel is not None
            wrong = [
                said
                for count in _COUNTS
                for scale in (scales if element in _FLOATS else [1.0])
                if (said := _differs(cuda, kernel, stream, (operator, element), count, scale))
            ]
            found.holds(f"{name} is exact", not wrong, "; ".join(wrong[:3]))
            if cuda.has("cuEventElapsedTime"):
                _time(found, cuda, kernel, stream, name, element)


def _differs(
    cuda: Cuda,
    kernel: int,
    stream: int,
    which: tuple[str, str],
    count: int,
    scale: float,
) -> str:
    """Where a kernel's result is another than the reference's."""
    operator, element = which
    own, into = (_content(element, count + _BEHIND, seed, cuda.is_stand_in) for seed in (1, 2))
    expected = _reference(operator, element, own, into, scale)
    expected[count:] = into[count:]
    places = [cuda.allocate(one.nbytes) for one in (own, into)]
    for place, content in zip(places, (own, into)):
        cuda.write(place, content.tobytes(), stream)
    _launch(cuda, kernel, stream, places, count, scale)
    result = np.frombuffer(cuda.read(places[1], into.nbytes, stream), into.dtype)
    for place in places:
        cuda.free(place)
    wrong = result != expected
    if cuda.is_stand_in and operator != "sum" and element in _FLOATS:
        # Its code takes either of two zeros.
        wrong &= _floats(element, result) != _floats(element, expected)
    at = np.flatnonzero(wrong)
    if not len(at):
        return ""
    first = int(at[0])
    bits = [hex(int(one[first])) for one in (own, into, result, expected)]
    return (
        f"{len(at)} of {count} with scale {scale:g}; the first at {first}: {bits[0]} and {bits[1]} "
        f"gave {bits[2]}, not {bits[3]}"
    )


def _launch(
    cuda: Cuda, kernel: int, stream: int, places: list[int], count: int, scale: float
) -> None:
    blocks = min(max(-(-count // _THREADS), 1), _BLOCKS)
    own, into = (ctypes.c_uint64(place) for place in places)
    parameters = (own, into, ctypes.c_uint64(count), ctypes.c_float(scale))
    cuda.launch(kernel, blocks, _THREADS, stream, *parameters)


def _content(element: str, count: int, seed: int, is_stand_in: bool) -> Any:
    """Bits of elements: all kinds of numbers, each beside each; the stand-in's code is for finite ones."""
    random = np.random.default_rng(seed * 1000 + count)
    if element in _INTEGERS:
        return np.frombuffer(
            random.bytes(count * np.dtype(_INTEGERS[element]).itemsize), _INTEGERS[element]
        ).copy()
    stored = _STORED[element]
    if is_stand_in:
        numbers = random.standard_normal(count).astype(np.float32)
        return _bits(element, numbers)
    bits = np.frombuffer(random.bytes(count * np.dtype(stored).itemsize), stored).copy()
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-40, 1.0, 3e38], np.float32)
    chosen = random.integers(0, 3, count) == 0
    drawn = _bits(element, random.choice(special, count))
    return np.where(chosen, drawn, bits)


def _floats(element: str, bits: Any) -> Any:
    if element == "bf16":
        return (bits.astype(np.uint32) << 16).view(np.float32)
    return bits.view(np.float32 if element == "f32" else np.float16).astype(np.float32)


def _bits(element: str, numbers: Any) -> Any:
    """Rounded to nearest, ties to even; every NaN the same."""
    with np.errstate(all="ignore"):
        if element == "f32":
            bits = numbers.view(np.uint32).copy()
        elif element == "f16":
            bits = numbers.astype(np.float16).view(np.uint16)
        else:
            wide = numbers.view(np.uint32).astype(np.uint64)
            bits = ((wide + 0x7FFF + ((wide >> 16) & 1)) >> 16).astype(np.uint16)
    bits[np.isnan(numbers)] = _NAN[element]
    return bits


def _reference(operator: str, element: str, own: Any, into: Any, scale: float) -> Any:
    with np.errstate(all="ignore"):
        if element in _INTEGERS:
            if operator == "sum":
                return own + into
            return (np.maximum if operator == "max" else np.minimum)(own, into)
        one, other = _floats(element, own), _floats(element, into)
        if operator == "sum":
            factor = np.float32(scale)
            return _bits(element, one * factor + other * factor)
        larger = operator == "max"
        combined = (np.maximum if larger else np.minimum)(one, other)
        zeros = (one == 0) & (other == 0)
        negative = np.signbit(one) & np.signbit(other)
        if not larger:
            negative = np.signbit(one) | np.signbit(other)
        combined = np.where(zeros, np.where(negative, -0.0, 0.0), combined).astype(np.float32)
        return _bits(element, combined)


def _time(found: Findings, cuda: Cuda, kernel: int, stream: int, name: str, element: str) -> None:
    """The time of 2 MiB, beside that of a copy of as much on the device."""
    places = [cuda.allocate(_TIMED_BYTES) for _ in range(2)]
    itemsize = np.dtype(_INTEGERS.get(element) or _STORED[element]).itemsize

    def combine() -> None:
        _launch(cuda, kernel, stream, places, _TIMED_BYTES // itemsize, 1.0)

    def copy() -> None:
        cuda("cuMemcpyDtoDAsync_v2", places[1], places[0], _TIMED_BYTES, stream)

    seconds = {}
    for what, begin in (("kernel", combine), ("copy", copy)):
        begin()
        first = cuda.event(stream)
        for _ in range(_TIMED_ROUNDS):
            begin()
        last = cuda.event(stream)
        cuda("cuEventSynchronize", last)
        seconds[what] = cuda.seconds_between(first, last) / _TIMED_ROUNDS
    for place in places:
        cuda.free(place)
    found.figure(f"{name}_2mib_us", round(seconds["kernel"] * 1e6, 2))
    found.figure("copy_on_device_2mib_us", round(seconds["copy"] * 1e6, 2))
