"""Strategies: lower-triangular matrices C whose noise ``C^{-1} Z`` suits a workload.

Everything here runs once, at planning time, in float64 numpy and knows nothing of data:

- ``toeplitz``: square roots, inverses and column norms of Toeplitz strategies, and the
  best one with a given number of bands;
- ``blt``: the best strategy that streams through a few buffers, at any length;
- ``scaled``: the same with a size for each step, for any map, which several epochs gain most from;
- ``dense``: the best strategy of all, with a certificate, for up to about two thousand steps;
- ``error``: the noise a strategy leaves in a workload, and workloads of any kind as matrices.
"""
