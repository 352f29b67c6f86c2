"""NPB's problem classes: sizes, iterations and verification values of NPB 3.4, and the numbers of operations for Mop/s."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import log, prod
from typing import Final

ITERATIONS_OF_IS: Final = 10
STEPS_OF_CG: Final = 25
"""Steps of conjugate gradients in one iteration."""


@dataclass(frozen=True, slots=True)
class IsClass:
    """Integer sort. log_keys, log_max, log_buckets: binary logarithms of the number of keys, of the limit of keys, and of
    the number of buckets. indexes, ranks: indexes and ranks of the test keys (partial verification). growth: (factor,
    offset) of each test key: after iteration i its rank has changed by factor * (i - offset)."""

    log_keys: int
    log_max: int
    log_buckets: int
    indexes: tuple[int, ...]
    ranks: tuple[int, ...]
    growth: tuple[tuple[int, int], ...]
    iterations: int = ITERATIONS_OF_IS

    @property
    def keys(self) -> int:
        return 1 << self.log_keys

    @property
    def buckets(self) -> int:
        return 1 << self.log_buckets

    def operations(self) -> float:
        return self.iterations * self.keys


@dataclass(frozen=True, slots=True)
class CgClass:
    """Conjugate gradients. order: order of the matrix. nonzeros: nonzeros of each generating vector. zeta: verification
    value."""

    order: int
    nonzeros: int
    iterations: int
    shift: float
    zeta: float

    def operations(self) -> float:
        entries = self.nonzeros * (self.nonzeros + 1)
        operations_per_step = 3 + entries + STEPS_OF_CG * (5 + entries) + 3
        return 2 * self.iterations * self.order * operations_per_step


@dataclass(frozen=True, slots=True)
class MgClass:
    """Multigrid. log_edge: binary logarithm of the number of points along an edge of the grid. smoother: factors of the
    centre, of faces and of edges. norm: verification value."""

    log_edge: int
    iterations: int
    smoother: tuple[float, float, float]
    norm: float

    @property
    def edge(self) -> int:
        return 1 << self.log_edge

    def operations(self) -> float:
        return 58 * self.iterations * self.edge**3


@dataclass(frozen=True, slots=True)
class FtClass:
    """Fourier transforms. shape: nx, ny, nz. checksums: verification values of the iterations; empty: not included here."""

    shape: tuple[int, int, int]
    iterations: int
    checksums: tuple[complex, ...] = ()

    @property
    def points(self) -> int:
        return prod(self.shape)

    def operations(self) -> float:
        logarithm = log(self.points)
        operations_per_point = 14.8157 + 7.19641 * logarithm + (5.23518 + 7.21113 * logarithm) * self.iterations
        return self.points * operations_per_point


_UP_THREE: Final = ((1, 0), (1, 0), (1, 0), (-1, 0), (-1, 0))
IS: Final[Mapping[str, IsClass]] = {
    "S": IsClass(16, 11, 9, (48427, 17148, 23627, 62548, 4431), (0, 18, 346, 64917, 65463), _UP_THREE),
    "W": IsClass(
        20, 16, 10, (357773, 934767, 875723, 898999, 404505), (1249, 11698, 1039987, 1043896, 1048018),
        ((1, 2), (1, 2), (-1, 0), (-1, 0), (-1, 0)),
    ),
    "A": IsClass(
        23, 19, 10, (2112377, 662041, 5336171, 3642833, 4250760), (104, 17523, 123928, 8288932, 8388264),
        ((1, 1), (1, 1), (1, 1), (-1, 1), (-1, 1)),
    ),
    "B": IsClass(
        25, 21, 10, (41869, 812306, 5102857, 18232239, 26860214), (33422937, 10244, 59149, 33135281, 99),
        ((-1, 0), (1, 0), (1, 0), (-1, 0), (1, 0)),
    ),
    "C": IsClass(
        27, 23, 10, (44172927, 72999161, 74326391, 129606274, 21736814), (61147, 882988, 266290, 133997595, 133525895),
        _UP_THREE,
    ),
}  # fmt: skip

CG: Final[Mapping[str, CgClass]] = {
    "S": CgClass(1_400, 7, 15, 10, 8.5971775078648),
    "W": CgClass(7_000, 8, 15, 12, 10.362595087124),
    "A": CgClass(14_000, 11, 15, 20, 17.130235054029),
    "B": CgClass(75_000, 13, 75, 60, 22.712745482631),
    "C": CgClass(150_000, 15, 75, 110, 28.973605592845),
}

_SMALL: Final = (-3 / 8, 1 / 32, -1 / 64)
_LARGE: Final = (-3 / 17, 1 / 33, -1 / 61)
MG: Final[Mapping[str, MgClass]] = {
    "S": MgClass(5, 4, _SMALL, 0.5307707005734e-4),
    "W": MgClass(7, 4, _SMALL, 0.6467329375339e-5),
    "A": MgClass(8, 4, _SMALL, 0.2433365309069e-5),
    "B": MgClass(8, 20, _LARGE, 0.1800564401355e-5),
    "C": MgClass(9, 20, _LARGE, 0.5706732285740e-6),
}

FT: Final[Mapping[str, FtClass]] = {
    "S": FtClass((64, 64, 64), 6, (
        554.6087004964 + 484.5363331978j, 554.6385409189 + 486.5304269511j, 554.6148406171 + 488.3910722336j,
        554.5423607415 + 490.1273169046j, 554.4255039624 + 491.7475857993j, 554.2683411902 + 493.2597244941j,
    )),
    "W": FtClass((128, 128, 32), 6, (
        567.3612178944 + 529.3246849175j, 563.1436885271 + 528.2149986629j, 559.4024089970 + 527.0996558037j,
        556.0698047020 + 526.0027904925j, 553.0898991250 + 524.9400845633j, 550.4159734538 + 523.9212247086j,
    )),
    "A": FtClass((256, 256, 128), 6, (
        504.6735008193 + 511.4047905510j, 505.9412319734 + 509.8809666433j, 506.9376896287 + 509.8144042213j,
        507.7892868474 + 510.1336130759j, 508.5233095391 + 510.4914655194j, 509.1487099959 + 510.7917842803j,
    )),
    "B": FtClass((512, 256, 256), 20),
    "C": FtClass((512, 512, 512), 20),
}  # fmt: skip
