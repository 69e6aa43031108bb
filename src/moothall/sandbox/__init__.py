"""The sandbox for code that a model wrote: namespaces, seccomp, Landlock, cgroups and rlimits, each
of which is probed.
"""
