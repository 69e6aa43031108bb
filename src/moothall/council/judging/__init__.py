"""What an answer is worth, found by the trusted side: clean re-checks, counter-proofs, tests of other seats, distinguishing inputs, reviews."""
