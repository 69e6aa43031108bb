"""Code that runs inside sandboxes, and the protocol shared with the trusted side. It uses only the
standard library and imports nothing else of Moothall.

The whole folder is in every sandbox, compiled (`workspace/executor_connection.py`). Modules that
cost start time are imported where they are used.
"""
