"""Issues of a forge, answered with pull requests: what it says and is told, what that means, and
who looks after it.
"""
