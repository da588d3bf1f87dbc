"""GloVe's loss, weights and gradients (Pennington, Socher, Manning 2014) in plain numpy: the kernels' reference.

loss = mean over entries of f(x) (v_i . v_j + b_i + b_j - log x)^2 with f(x) = min(1, (x / x_max)^alpha).
No I/O, no state, any float dtype.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from glovewire.common.array_types import Floats


def weights(counts: npt.ArrayLike, x_max: float = 100.0, alpha: float = 0.75) -> Floats:
    """f(x) for counts of any shape."""
    return np.minimum(np.asarray(counts, dtype=np.float64) / x_max, 1.0) ** alpha


def residuals(v_i: Floats, v_j: Floats, b_i: Floats, b_j: Floats, counts: Floats) -> Floats:
    """v_i . v_j + b_i + b_j - log x; vectors (batch, dim), the rest (batch,)."""
    dots: Floats = np.einsum("nd,nd->n", v_i, v_j)
    return dots + b_i + b_j - np.log(counts)


def loss(
    v_i: Floats, v_j: Floats, b_i: Floats, b_j: Floats, counts: Floats, x_max: float = 100.0, alpha: float = 0.75
) -> float:
    """Mean loss of a batch; vectors (batch, dim), the rest (batch,), counts positive."""
    return float(np.mean(weights(counts, x_max, alpha) * residuals(v_i, v_j, b_i, b_j, counts) ** 2))


def gradients(
    v_i: Floats, v_j: Floats, b_i: Floats, b_j: Floats, counts: Floats, x_max: float = 100.0, alpha: float = 0.75
) -> tuple[Floats, Floats, Floats, Floats]:
    """Gradients of `loss` with respect to v_i, v_j (batch, dim), b_i and b_j (batch,)."""
    scale = 2.0 * weights(counts, x_max, alpha) * residuals(v_i, v_j, b_i, b_j, counts) / len(counts)
    return scale[:, None] * v_j, scale[:, None] * v_i, scale, scale
