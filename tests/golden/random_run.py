"""Compiles random_run.c, which makes smelt's side of check_families.py and check_export.py, with the libraries that the Makefile links."""
import os
import re
import subprocess

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def build(build_folder, scratch):
    """The path of the program, in `scratch`; libsmelt.a is in `build_folder`."""
    program = os.path.join(scratch, "random_run")
    with open(os.path.join(ROOT, "Makefile")) as file:
        libraries = re.search(r"^LIBRARIES := (.*)$", file.read(), re.MULTILINE)[1].split()
    subprocess.run(["cc", "-std=gnu17", "-D_GNU_SOURCE", "-Isrc", "-Itests", "-o", program, "tests/golden/random_run.c",
                    os.path.join(os.path.abspath(build_folder), "libsmelt.a"), *libraries], check=True, cwd=ROOT)
    return program
