"""Puts tests in other words for a counter-proof: under the same ids, with other ends or other expectations. Pure."""
