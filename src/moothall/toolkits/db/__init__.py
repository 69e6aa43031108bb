"""`db.*`: the operator's databases."""
