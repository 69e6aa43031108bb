"""The context graph: what the log says, as nodes and relations that questions can be asked of."""
