"""Evaluation of candidates by the trusted side: clean re-checks, the seats' tests, and reviews."""
