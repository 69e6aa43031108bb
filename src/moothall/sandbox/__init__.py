"""The sandbox for code that a model wrote: namespaces, seccomp, Landlock, cgroups and rlimits. Each
layer is probed at the start.
"""
