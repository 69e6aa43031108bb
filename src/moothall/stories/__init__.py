"""Stories: their states, their tasks, and the execution of due steps. Knows ports and domain, but
no client library.
"""
