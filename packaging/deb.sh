#!/bin/sh
# Makes a Debian package of what install.sh installs. It depends on the packages of the libraries that the program is linked with, as dpkg-shlibdeps finds
# them. Usage: deb.sh SMELT VERSION OUT.deb
set -eu
smelt=$1 version=$2 out=$3
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
root=$stage/root
packaging/install.sh "$smelt" "$root/usr"
strip "$root/usr/bin/smelt"
gzip -9n "$root/usr/share/man/man1/smelt.1"
mv "$root/usr/share/doc/smelt/LICENSE" "$root/usr/share/doc/smelt/copyright"
mkdir "$stage/debian" "$root/DEBIAN"
printf 'Source: smelt\n\nPackage: smelt\nArchitecture: any\n' >"$stage/debian/control" # dpkg-shlibdeps asks for one
depends=$(cd "$stage" && dpkg-shlibdeps -O root/usr/bin/smelt 2>"$stage/warnings") || { cat "$stage/warnings" >&2; exit 1; }
cat >"$root/DEBIAN/control" <<END
Package: smelt
Version: $version
Architecture: $(dpkg --print-architecture)
Maintainer: the authors of smelt <smelt@localhost>
Installed-Size: $(du -sk "$root/usr" | cut -f1)
Depends: ${depends#shlibs:Depends=}
Recommends: libcurl4, libmicrohttpd12
Suggests: openmpi-bin
Section: science
Priority: optional
Description: trains large language models
 One program that turns text into tokens, trains, evaluates, generates and
 exports Hugging Face models, on AMD Instinct GPUs, NVIDIA GPUs and CPUs.
 libcurl4 is for checkpoints in S3 stores, libmicrohttpd12 for smelt watch and smelt serve, openmpi-bin for many CPU ranks.
END
(cd "$root" && find usr -type f -exec md5sum {} + | LC_ALL=C sort -k2 >DEBIAN/md5sums)
dpkg-deb --root-owner-group --build "$root" "$out" >/dev/null
echo "$out: $(dpkg-deb --field "$out" Depends)"
