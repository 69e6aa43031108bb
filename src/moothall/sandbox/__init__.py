"""Running code that a model wrote: namespaces, seccomp, Landlock, cgroups and rlimits, each
probed.
"""
