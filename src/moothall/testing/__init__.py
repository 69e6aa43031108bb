"""For whoever writes a bus, a model server or a client of their own: fakes that do as they are
told, and what each must pass.
"""
