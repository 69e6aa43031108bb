"""The checks between a request and a tool: identity, grants, tokens, policy, limits and audit."""
