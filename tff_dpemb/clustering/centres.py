"""Noisy centres made better: directions in the noise are shrunk away.

A direction in which users of one class hardly differ carries little about
classes too, yet gets as much noise as any other, and a classifier would
amplify it. Shrinking by the released covariance removes that noise. It is
post-processing of released values.
"""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True, eq=False)
class Shrunk:
  """Shrunk centres and how far they moved.

  Attributes:
    centres: [C, d].
    signal: Estimated energy (trace) of the variation between centres, >= 0.
    kept: Mean weight of the centres against their grand mean, in [0, 1].
  """

  centres: np.ndarray
  signal: float
  kept: float


def shrink(
  centres: np.ndarray,
  variances: np.ndarray,
  weights: np.ndarray,
  covariance: np.ndarray,
) -> Shrunk:
  """Returns posterior mean centres under a Gaussian prior (empirical Bayes).

  Prior: centres are drawn about their grand mean with covariance tau S, S =
  `covariance` / its trace. tau is what the spread of the noisy centres exceeds
  their noise by (method of moments, at least 0). The posterior mean moves each
  centre toward the grand mean by S-direction: lambda tau / (lambda tau + v),
  the Wiener filter; James and Stein's rule is the case of equal lambda.

  Args:
    centres: [C, d] noisy, finite.
    variances: [C] variance of the noise of each coordinate, > 0.
    weights: [C] weight of each centre, >= 0; those of weight 0 have no say in
      the grand mean and in tau.
    covariance: [d, d] positive definite, of points within a class.
  """
  count, dim = centres.shape
  total = weights.sum()
  if count < 2 or (weights > 0).sum() < 2 or not total > 0:
    return Shrunk(centres, 0.0, 1.0)
  shares = weights / total
  mean = shares @ centres
  offsets = centres - mean
  spread = shares @ np.square(offsets).sum(axis=1)
  # E spread = (1 - sum share^2) tau + d sum share (1 - share) variance.
  noise = dim * np.sum(shares * (1 - shares) * variances)
  signal = max(0.0, float(spread - noise)) / (1 - np.sum(shares**2))
  values, vectors = np.linalg.eigh(covariance / np.trace(covariance))
  prior = signal * np.maximum(values, 0.0)
  factors = prior / (prior + variances[:, None])
  return Shrunk(
    centres=mean + (offsets @ vectors * factors) @ vectors.T,
    signal=signal,
    kept=float(factors.mean()),
  )
