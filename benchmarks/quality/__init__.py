"""How good the answers are: HumanEval with a small model, bare and in council. Run by
scripts/quality.
"""
