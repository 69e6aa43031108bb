"""The context graph: the content of the log, as nodes and relations that can be queried."""
