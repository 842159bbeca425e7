"""The beginning of a script that kills its process at the n-th fsync, n being its first argument."""

KILLED_AT_FSYNC = """
import os, sys
sync, left = os.fsync, int(sys.argv[1])
def fsync(file):
    global left
    left -= 1
    sync(file) if left else os.kill(os.getpid(), 9)
os.fsync = fsync
"""
