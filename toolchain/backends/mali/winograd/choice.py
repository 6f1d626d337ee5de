"""Which convolutions Winograd's algorithm computes: those that gain by it, by Mesa's figures and the bytes moved.

Mesa's compiler says of G610 what the kernels of ResNet-18 are made of. A multiply-add of vectors of four is 0.11
cycles of a core among the products of components, where it is arithmetic that counts, and 0.135 in a direct
convolution that pads, of tiles of four pixels, where it is loads: a core does four a cycle. A row of components of
F(4x4) is 11.6 cycles, and one of results 13.3; the bytes that they move take longer: a core of G610 gets six and a half
a cycle from memory, by what clpeak is published to measure on RK3588, and other GPUs are taken to be like it. Kernels
take as long as the slower of the two, one after the other.
"""

from __future__ import annotations

from toolchain.backends.mali.winograd.tiling import LANES, TAPS, Tiling

Image = tuple[int, int, int, int]

_PRODUCT, _DIRECT = 0.11, 0.135  # cycles of a multiply-add of vectors
_ACROSS = 4  # pixels of a direct convolution's tile, which may reach over the edge
_BYTES = 6.5  # that a core gets from memory in a cycle
_LAUNCHES = 40_000.0  # cycles of two launches more, of all cores
_GAIN = 0.8  # of the cycles of a direct convolution: what it has to be below
_FLOAT = 4  # bytes


def choose_tiling(image: Image, outputs: int, padding: tuple[int, int, int, int]) -> Tiling | None:
    """Return how a 3x3 convolution with steps of one is best cut into tiles; None if it is computed as it is.

    Args:
        image: Its input: images, height, width, channels.
        outputs: Channels of its result.
        padding: Zeros above, to the left, below, to the right.
    """
    if image[3] % LANES or outputs % LANES or max(padding) >= TAPS or min(padding) < 0:
        return None
    tilings = [Tiling(image, outputs, padding, size) for size in (2, 4)]
    if min(tilings[0].height, tilings[0].width) < 1:
        return None
    best = min(tilings, key=winograd_cycles)
    return best if winograd_cycles(best) < _GAIN * direct_cycles(best) else None


def direct_cycles(tiling: Tiling) -> float:
    """Estimate the cycles of all cores together that a convolution takes as it is."""
    rows = tiling.image[0] * tiling.height
    pixels, covered = rows * tiling.width, rows * -(-tiling.width // _ACROSS) * _ACROSS
    weights = TAPS**2 * tiling.inputs * tiling.outputs
    moved = tiling.image[0] * tiling.image[1] * tiling.image[2] * tiling.inputs + pixels * tiling.outputs + weights
    return max(covered * weights / LANES * _DIRECT, moved * _FLOAT / _BYTES)


def winograd_cycles(tiling: Tiling) -> float:
    """Estimate the cycles of all cores together that the three kernels take."""
    pixels = tiling.tiles * tiling.size**2
    components = tiling.tiles * tiling.components
    moved_in, moved_out = (
        (pixels + components) * channels * _FLOAT / _BYTES for channels in (tiling.inputs, tiling.outputs)
    )
    moved = components * (tiling.inputs + tiling.outputs) + tiling.components * tiling.inputs * tiling.outputs
    products = components * tiling.inputs * tiling.outputs / LANES * _PRODUCT
    # The transforms are bound by memory; the products by arithmetic or by memory.
    return moved_in + max(products, moved * _FLOAT / _BYTES) + moved_out + _LAUNCHES
