"""How much a series repeats itself: integrated autocorrelation time and effective sample size.

Latencies of neighbouring requests share a queue, so that n of them tell as much as n / tau independent ones.
Sokal's window (1997): sum the autocorrelations up to the first lag m >= 5 tau(m), where more lags would add
noise only.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

WINDOW_FACTOR = 5.0


def autocorrelation(series: NDArray[np.float64]) -> NDArray[np.float64]:
    """Autocorrelation at lags 0, 1, ... (biased estimate, by FFT); of a constant series 1, 0, 0, ..."""
    from scipy import fft

    n = len(series)
    centred = series - series.mean()
    padded = fft.next_fast_len(2 * n, real=True)
    covariance = fft.irfft(np.abs(fft.rfft(centred, padded)) ** 2, padded)[:n]
    if covariance[0] <= 1e-12 * max(1.0, float(series @ series)):
        return np.asarray(np.eye(1, n)[0])
    return np.asarray(covariance / covariance[0], np.float64)


def autocorrelation_time(series: NDArray[np.float64]) -> float:
    """tau = 1 + 2 sum of autocorrelations: n / tau values would tell as much, were they independent. At least
    1.
    """
    if len(series) < 2:
        return 1.0
    taus = 2 * np.cumsum(autocorrelation(series)) - 1
    beyond = np.flatnonzero(np.arange(len(taus)) >= WINDOW_FACTOR * taus)
    return max(1.0, float(taus[beyond[0] if len(beyond) else -1]))
