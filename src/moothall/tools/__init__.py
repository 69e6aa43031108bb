"""The catalogue of tools, and the tools that need no client library."""
