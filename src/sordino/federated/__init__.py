"""Federated training: data stay with their owners, what leaves them is already private."""
