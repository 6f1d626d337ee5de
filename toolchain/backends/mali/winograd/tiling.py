"""How a 3x3 convolution is cut into tiles of m x m results, the numbers that transform those, and where it pays.

Y = A' [(G w G') * (B' d B)] A with ' for transposition and * element by element (Lavin and Gray, "Fast algorithms for
convolutional neural networks", arXiv:1509.09308), at the points of `backends/cpu/kernels/winograd/algebra.py`, which
also transforms the weights.
"""

from __future__ import annotations

from dataclasses import dataclass

from toolchain.backends.cpu.kernels.winograd import algebra

LANES = 4
"""Channels of a vector."""
TAPS = algebra.TAPS
POINT = algebra.POINT

Matrix = tuple[tuple[float, ...], ...]

INPUTS: dict[int, Matrix] = {
    2: ((1, 0, -1, 0), (0, 1, 1, 0), (0, -1, 1, 0), (0, 1, 0, -1)),
    4: (
        (1, 0, -2.5, 0, 1, 0),
        (0, -2 * POINT, -2, POINT, 1, 0),
        (0, 2 * POINT, -2, -POINT, 1, 0),
        (0, -POINT, -0.5, 2 * POINT, 1, 0),
        (0, POINT, -0.5, -2 * POINT, 1, 0),
        (0, 1, 0, -2.5, 0, 1),
    ),
}
"""B' by m: components of inputs."""

OUTPUTS: dict[int, Matrix] = {
    2: ((1, 1, 1, 0), (0, 1, -1, -1)),
    4: (
        (1, 1, 1, 1, 1, 0),
        (0, POINT, -POINT, 2 * POINT, -2 * POINT, 0),
        (0, 0.5, 0.5, 2, 2, 0),
        (0, POINT / 2, -POINT / 2, 4 * POINT, -4 * POINT, 1),
    ),
}
"""A' by m: results of components."""


@dataclass(frozen=True)
class Tiling:
    """A convolution with steps of one, and its tiles.

    Attributes:
        image: Its input: images, height, width, channels.
        outputs: Channels of its result.
        padding: Zeros above, to the left, below, to the right.
        size: Height and width of a tile of the result: 2 or 4.
    """

    image: tuple[int, int, int, int]
    outputs: int
    padding: tuple[int, int, int, int]
    size: int

    @property
    def inputs(self) -> int:
        """Channels of the input."""
        return self.image[3]

    @property
    def side(self) -> int:
        """Height and width of the inputs that a tile is made of."""
        return self.size + TAPS - 1

    @property
    def components(self) -> int:
        """Components of a tile."""
        return self.side**2

    @property
    def height(self) -> int:
        """Height of the result."""
        return self.image[1] + self.padding[0] + self.padding[2] - TAPS + 1

    @property
    def width(self) -> int:
        """Width of the result."""
        return self.image[2] + self.padding[1] + self.padding[3] - TAPS + 1

    @property
    def down(self) -> int:
        """Tiles of a column."""
        return -(-self.height // self.size)

    @property
    def across(self) -> int:
        """Tiles of a row."""
        return -(-self.width // self.size)

    @property
    def tiles(self) -> int:
        """Tiles of all images."""
        return self.image[0] * self.down * self.across


# --- the choice ------------------------------------------------------------------------------------------------------

# Mesa's compiler says of G610 what the kernels of ResNet-18 are made of. A multiply-add of vectors of four is 0.11
# cycles of a core among the products of components, where it is arithmetic that counts, and 0.135 in a direct
# convolution that pads, of tiles of four pixels, where it is loads: a core does four a cycle. A row of components of
# F(4x4) is 11.6 cycles, and one of results 13.3; the bytes that they move take longer: a core of G610 gets six and a
# half a cycle from memory, by what clpeak is published to measure on RK3588, and other GPUs are taken to be like it.
# Kernels take as long as the slower of the two, one after the other.

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
