#!/usr/bin/env python3
"""Makes a wheel of the files that install.sh installed and of the package python/smelt: `pip install` puts the program into the environment's
bin/. The program is linked statically with its small libraries, so only the oldest glibc that has all its functions decides the platform tag. The
wheel contains the licenses of these libraries.

Usage: wheel.py FOLDER VERSION OUT_FOLDER LIBRARY.a...; FOLDER has bin/ and share/. It runs in the root of the repository."""
import base64
import glob
import hashlib
import os
import platform
import re
import subprocess
import sys
import zipfile

folder, version, out_folder, *libraries = sys.argv[1:]
METADATA = f"""Metadata-Version: 2.1
Name: smelt
Version: {version}
Summary: trains large language models
License: Apache-2.0
Requires-Python: >=3.9
Requires-Dist: numpy>=1.22
Description-Content-Type: text/markdown

"""


def output(*command):
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def read(path):
    with open(path, "rb") as file:
        return file.read()


def glibc(program):
    """The newest version of glibc that a function of the program has, such as 2.34. All that it is linked with must be of glibc."""
    own = {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", f"ld-linux-{platform.machine().replace('_', '-')}.so.2"}
    others = set(re.findall(r"\(NEEDED\).*\[(.*)\]", output("readelf", "-d", program))) - own
    if others:
        sys.exit(f"{program} is linked with {', '.join(sorted(others))}, which other systems may lack: link it statically")
    return max(tuple(map(int, found)) for found in re.findall(r"GLIBC_(\d+)\.(\d+)", output("objdump", "-T", program)))


def license(library):
    """The Debian package of a library, and its copyright file."""
    package = output("dpkg-query", "-S", os.path.realpath(library)).split(":")[0]
    return package, read(f"/usr/share/doc/{package}/copyright")


def content():
    """All files: name, bytes, whether it is a program."""
    info = f"smelt-{version}.dist-info"
    tag = "py3-none-manylinux_{}_{}_{}".format(*glibc(f"{folder}/bin/smelt"), platform.machine())
    files = [(f"smelt-{version}.data/scripts/smelt", read(f"{folder}/bin/smelt"), True)]
    for path, _, names in sorted(os.walk(f"{folder}/share")):
        for name in sorted(names):
            files.append((f"smelt-{version}.data/data/{os.path.relpath(path, folder)}/{name}", read(f"{path}/{name}"), False))
    for path in sorted(glob.glob("python/smelt/*.py") + ["python/smelt/py.typed"]):
        files.append((os.path.relpath(path, "python"), read(path), False))
    files.append((f"{info}/METADATA", METADATA.encode() + read("docs/python.md"), False))
    files.append((f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: smelt\nRoot-Is-Purelib: false\nTag: {tag}\n".encode(), False))
    files.append((f"{info}/LICENSE", read("LICENSE"), False))
    for package, text in sorted({license(library) for library in libraries}):
        files.append((f"{info}/licenses/{package}", text, False))
    digest = lambda data: base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    record = "".join(f"{name},sha256={digest(data)},{len(data)}\n" for name, data, _ in files) + f"{info}/RECORD,,\n"
    return tag, files + [(f"{info}/RECORD", record.encode(), False)]


tag, files = content()
path = f"{out_folder}/smelt-{version}-{tag}.whl"
with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
    for name, data, program in files:
        entry = zipfile.ZipInfo(name)
        entry.external_attr = (0o100755 if program else 0o100644) << 16
        entry.compress_type = zipfile.ZIP_DEFLATED
        wheel.writestr(entry, data)
print(f"{path}: {os.path.getsize(path) >> 20} MiB, with the licenses of {len(libraries)} libraries")
