"""The native extension: passes over memory that PyTorch cannot fuse, in C++ without a link to torch or Python.

It is loaded with ctypes and works on raw pointers: one small library, which a plain C++ compiler builds in seconds,
serves every version of Python and torch. Where it could not be built, everything works without it, only slower.
"""
