"""Tools of configured MCP servers. The operator accepts them into the catalogue; calls pass the
tool gateway like all others.
"""
