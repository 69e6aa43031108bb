"""Measure the quality of results on HumanEval, with a small model: bare, with one seat, and with a
council. Run by scripts/quality.
"""
