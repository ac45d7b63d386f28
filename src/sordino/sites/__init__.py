"""Sites: the folders in which servers and clients of a federated run live, and what they run."""
