"""What tests and benchmarks need and the package does not ship."""
