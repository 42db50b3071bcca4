#!/usr/bin/env python3
"""Follows a recipe of CONTRIBUTING.md in a copy of the source tree: applies its listings, then runs its commands there.

A recipe is a section `## HEADING`. Its listings are fenced blocks; the first `folder/file.ext` of the numbered step around
a listing names its file.
    c     the whole file; if the file exists, lines for its end
    diff  changes of the file: `+` lines between lines that it has, which must stand there exactly once; `@@` parts changes
    sh    commands, run in order, at the root of the copy

The copy takes the objects of the build folder along, so that only changed files are compiled. A changed header keeps its
time: files that include it themselves are compiled again, others are not, because a line at the end of a list changes
nothing that they know.    Usage: recipes.py BUILD HEADING"""
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile

NEEDED = ["Makefile", "src", "tests", "configs", "packaging", "tools"]
STEP = re.compile(r"^\d+\. ", re.M)
FILE = re.compile(r"`((?:\w+/)+\w+\.\w+)`")
LISTING = re.compile(r"^( *)```(\w+)\n(.*?)^ *```$", re.M | re.S)


def listings(heading):
    """Yields the language, the file and the text of each listing of a section."""
    sections = re.split(r"^## ", open("CONTRIBUTING.md").read(), flags=re.M)
    [section] = [s for s in sections if s.startswith(heading + "\n")]
    for step in STEP.split(section)[1:]:
        named = FILE.search(step)
        for indent, language, text in LISTING.findall(step):
            yield language, named and named[1], re.sub("^" + indent, "", text, flags=re.M)


def copy_tree(build, root):
    """Copies sources, and the objects of `build` as root/build."""
    def unneeded(folder, names):
        inside = os.path.relpath(folder, build)
        return [n for n in names if os.path.isfile(os.path.join(folder, n)) and inside != "gpu" and not n.endswith((".o", ".d")) or n.endswith(".ll")]

    for name in NEEDED:
        copy = shutil.copytree if os.path.isdir(name) else shutil.copy2
        copy(name, os.path.join(root, name))
    for folder in [f for f in os.listdir("src") + ["gpu", "tests/support"] if os.path.isdir(os.path.join(build, f))]:
        shutil.copytree(os.path.join(build, folder), os.path.join(root, "build", folder), ignore=unneeded)
    if os.path.isdir(os.path.join(build, "tools")):
        os.symlink(os.path.abspath(os.path.join(build, "tools")), os.path.join(root, "build", "tools"))


def change(path, text):
    """Applies the changes of a `diff` listing to a file."""
    content = open(path).read()
    for hunk in re.split(r"^@@\n", text, flags=re.M):
        lines = hunk.splitlines(keepends=True)
        before, after = ("".join(l[1:] for l in lines if l[0] != sign) for sign in "+-")
        if content.count(before) != 1:
            sys.exit(f"{path} has these lines {content.count(before)} times, not once:\n{before}")
        content = content.replace(before, after)
    with open(path, "w") as file:
        file.write(content)


def apply(root, language, path, text):
    """Applies one listing. If it changes a header, removes the objects of the files that include it themselves."""
    full = os.path.join(root, path)
    exists = os.path.exists(full)
    before = os.stat(full) if exists else None
    if language == "diff":
        change(full, text)
    else:
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, "a") as file:
            file.write(text)
    if not exists or not path.endswith(".h"):
        return
    os.utime(full, ns=(before.st_atime_ns, before.st_mtime_ns))
    include = f'#include "{path.removeprefix("src/")}"'
    for source in glob.glob(f"{root}/src/**/*.c", recursive=True):
        if include in open(source).read():
            for stale in glob.glob(source.replace("/src/", "/build/").removesuffix(".c") + ".*o"):
                os.remove(stale)


def environment(build):
    """What make is told: the targets of the build, and nothing of a make that runs this."""
    commit, *targets = open(os.path.join(build, "built-from")).read().split()
    own = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "SMELT", "SMELT_TEST_CASES")}
    return commit, own | {"GPU_TARGETS": " ".join(targets), "WERROR": "-Werror", "SMELT": "build/smelt", "MAKEFLAGS": f"-sj{os.cpu_count()}"}


def main(build, heading):
    commit, variables = environment(build)
    with tempfile.TemporaryDirectory() as root:
        copy_tree(build, root)
        with open(os.path.join(root, "COMMIT"), "w") as file:
            file.write(commit)
        for language, path, text in listings(heading):
            if language == "sh":
                subprocess.run(["sh", "-exc", text], cwd=root, env=variables, check=True)
            else:
                apply(root, language, path, text)


main(*sys.argv[1:])
