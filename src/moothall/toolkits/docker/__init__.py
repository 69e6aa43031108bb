"""`docker.*`: containers on the operator's engine."""
