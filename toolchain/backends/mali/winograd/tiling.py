"""How a 3x3 convolution is cut into tiles of m x m results, and the numbers by which those are transformed.

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
