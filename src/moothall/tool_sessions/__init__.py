"""Tool sessions of callers outside the councils. Each caller opens a workspace, receives a token
for it, calls tools through the gateway, and closes it.
"""
