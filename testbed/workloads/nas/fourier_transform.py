"""FT: the heat equation on a box, solved by Fourier transforms in three dimensions (RNR-94-007, sections 2.3.3 and 3.6).

Each rank has some of the planes along z. Before the transform along z, an all-to-all exchange gives each rank the complete
columns of some points (x, y). Transforms along x and y, and along z, are NumPy's. There may be at most as many ranks as
planes; NPB's distribution over more ranks is not implemented.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from testbed.workloads.form import Comm, VerificationError
from testbed.workloads.nas.problem_classes import FtClass
from testbed.workloads.nas.random_numbers import Array, numbers

_DIFFUSION: Final = 1e-6
_TOLERANCE: Final = 1e-12
_SAMPLES: Final = 1024  # points in a checksum


class FourierTransform:
    """One rank of the solver."""

    def __init__(self, comm: Comm, problem: FtClass) -> None:
        self._comm = comm
        self._problem = problem
        nx, ny, nz = problem.shape
        self._planes = nz // comm.size
        self._columns = nx * ny // comm.size
        self._checksums: list[complex] = []  # at rank 0

    async def prepare(self) -> None:
        """Do nothing: the data need no communication."""

    async def solve(self) -> None:
        nx, ny, _ = self._problem.shape
        start = self._planes * self._comm.rank * nx * ny
        values = numbers(2 * start + 1, 2 * self._planes * nx * ny).view(np.complex128)
        spectrum = await self._forward(values.reshape(self._planes, ny, nx))
        decay = self._decay()
        for _ in range(self._problem.iterations):
            spectrum *= decay
            await self._add_checksum(await self._inverse(spectrum))

    async def verify(self) -> float:
        """Return the last checksum's real part at rank 0, else 0. Raises VerificationError for a wrong checksum."""
        results = zip(self._checksums, self._problem.checksums, strict=False)
        for iteration, (checksum, expected) in enumerate(results, 1):
            for actual_part, expected_part in ((checksum.real, expected.real), (checksum.imag, expected.imag)):
                if not abs(actual_part - expected_part) <= _TOLERANCE * abs(expected_part):
                    raise VerificationError(
                        f"FT, iteration {iteration}: the checksum is {checksum:.12e}, not {expected:.12e}"
                    )
        return self._checksums[-1].real if self._checksums else 0.0

    async def _forward(self, values: Array) -> Array:
        """Transform planes of z to columns of the spectrum."""
        size = self._comm.size
        flat = np.fft.fft2(values).reshape(self._planes, size, self._columns)
        received = await self._transpose(flat.transpose(1, 0, 2))
        return np.fft.fft(received.reshape(-1, self._columns), axis=0)

    async def _inverse(self, spectrum: Array) -> Array:
        """Transform columns of the spectrum to planes of z."""
        nx, ny, _ = self._problem.shape
        received = await self._transpose(np.fft.ifft(spectrum, axis=0))
        return np.fft.ifft2(received.transpose(1, 0, 2).reshape(self._planes, ny, nx))

    async def _transpose(self, values: Array) -> Array:
        """Send the k-th block to rank k; return the received blocks. Shape: rank, plane, column."""
        received = np.empty((self._comm.size, self._planes, self._columns), np.complex128)
        await self._comm.Alltoall(np.ascontiguousarray(values).data, received.data)
        return received

    def _decay(self) -> Array:
        """Return the decay factors of this rank's part of the spectrum in a time step."""
        nx, ny, nz = self._problem.shape
        column = np.arange(self._columns) + self._comm.rank * self._columns
        plane = _squared(nx)[column % nx] + _squared(ny)[column // nx]
        factors: Array = np.exp(-4 * _DIFFUSION * np.pi**2 * (_squared(nz)[:, None] + plane))
        return factors

    async def _add_checksum(self, values: Array) -> None:
        nx, ny, nz = self._problem.shape
        sample = np.arange(1, _SAMPLES + 1)
        x, y, z = sample % nx, 3 * sample % ny, 5 * sample % nz - self._comm.rank * self._planes
        is_local = (z >= 0) & (z < self._planes)
        total = np.zeros(1, np.complex128)
        await self._comm.Reduce(np.array([values[z[is_local], y[is_local], x[is_local]].sum()]).data, total.data)
        if self._comm.rank == 0:
            self._checksums.append(complex(total[0]))


def _squared(count: int) -> Array:
    """Return the squares of the wave numbers by index; indices of the upper half stand for negative wave numbers."""
    return np.fft.fftfreq(count, 1 / count) ** 2
