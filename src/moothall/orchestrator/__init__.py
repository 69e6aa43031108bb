"""Where deliberations are asked for and asked about: the front desk, what is made of a request,
councils as they are registered.
"""
