"""`docker.*`: containers on an engine of the operator's."""
