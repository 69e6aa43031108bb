"""Tools of configured MCP servers: taken into the catalogue by the operator, run behind the gate
like any other.
"""
