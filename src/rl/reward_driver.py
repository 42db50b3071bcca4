"""Runs one test of generated Python code: python3 -c THIS FILE, where FILE is a descriptor with {"code", "tests", "token"}; the token replaces it if all ran."""
import json, os, sys

file = int(sys.argv[1])
given = json.loads(os.pread(file, os.fstat(file).st_size, 0))
os.pwrite(file, bytes(64), 0)
sys.argv = ["completion.py"]
sys.path = sys.path[1:] if sys.path[:1] == [""] else sys.path
names = {"__name__": "__main__"}
try:
    exec(compile(given["code"], "completion.py", "exec"), names)
except SystemExit:
    if given["tests"]: raise
exec(compile(given["tests"], "tests.py", "exec"), names)
sys.stdout.flush()
os.pwrite(file, given["token"].encode(), 0)
