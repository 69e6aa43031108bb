"""What a candidate is worth, found by the trusted side: clean re-checks, tests of the seats, reviews."""
