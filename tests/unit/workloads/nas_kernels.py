"""NAS kernels under test, with their problems of class S."""

from __future__ import annotations

from typing import Any

from testbed.workloads.nas.conjugate_gradient import ConjugateGradient
from testbed.workloads.nas.fourier_transform import FourierTransform
from testbed.workloads.nas.integer_sort import IntegerSort
from testbed.workloads.nas.multigrid import MultiGrid
from testbed.workloads.nas.problem_classes import CG, FT, IS, MG

KERNELS: dict[str, tuple[Any, Any]] = {
    "is": (IntegerSort, IS["S"]), "cg": (ConjugateGradient, CG["S"]), "mg": (MultiGrid, MG["S"]),
    "ft": (FourierTransform, FT["S"]),
}  # fmt: skip
