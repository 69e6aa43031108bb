"""Tools of configured MCP servers: taken into the catalogue by the operator, run behind the gateway
like any other.
"""
