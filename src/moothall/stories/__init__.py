"""From a story to ordered tasks, and handing them out. Knows ports and domain, no client
library.
"""
