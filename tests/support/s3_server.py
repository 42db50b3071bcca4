#!/usr/bin/python3
"""A real S3 server for the tests: OpenStack Swift with its S3 interface, one process, one folder, no privileges.

    tests/support/s3_server.py FOLDER BUCKET [PORT]     makes the bucket, prints "ready PORT" and serves until it is killed

It also fails requests as a bad day does. While the file FOLDER/faults/NAME holds a JSON object, requests fail whose key in the bucket, or the prefix of whose
listing, begins with NAME/:

    {"kind": "GET,HEAD", "key": "checkpoints/*/manifest.json", "answer": "503", "number": 2, "times": 3, "seconds": 5, "scope": "kind"}

"kind" is GET, HEAD, LIST, PUT, COPY, UPLOAD (of parts) or DELETE, or several of them; "key" is a pattern of what follows NAME/. "number" says which of these
requests fails first (1). Then requests of the kind and key, or of the kind (scope "kind"), or all (scope "all") fail: "times" of them (all), and none after
"seconds" (no limit). "answer" is a status, "reset", "cut" (half of the body) or "slow" (1 s). An object without "kind" fails none. FOLDER/requests/NAME receives
a line of JSON for each request meanwhile: kind, key and whether it failed.

Access key test:tester, secret testing, region us-east-1. Needs Debian's swift-proxy, swift-account, swift-container and swift-object, and a FOLDER
on a file system with extended attributes. What FOLDER holds outlives the server: a second start on it serves the same objects.
"""
import fnmatch
import json
import logging
import math
import os
import re
import socket
import stat
import struct
import sys
import time
import urllib.parse

import eventlet

eventlet.monkey_patch()

from swift.common import utils  # noqa: E402
from swift.common.ring import RingBuilder  # noqa: E402
from swift.common.storage_policy import reload_storage_policies  # noqa: E402
from swift.common.swob import Request  # noqa: E402
from swift.common.wsgi import loadapp  # noqa: E402

BACKENDS = ("account", "container", "object")

PROXY = """
[DEFAULT]
swift_dir = {folder}
[pipeline:main]
pipeline = catch_errors listing_formats s3api tempauth copy slo proxy-server
[filter:catch_errors]
use = egg:swift#catch_errors
[filter:listing_formats]
use = egg:swift#listing_formats
[filter:s3api]
use = egg:swift#s3api
location = us-east-1
min_segment_size = 5242880
[filter:tempauth]
use = egg:swift#tempauth
user_test_tester = testing .admin
[filter:copy]
use = egg:swift#copy
[filter:slo]
use = egg:swift#slo
rate_limit_segments_per_sec = 0
[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true
allow_account_management = true
"""

BACKEND = """
[DEFAULT]
devices = {folder}/devices
mount_check = false
disable_fallocate = true
[pipeline:main]
pipeline = {kind}-server
[app:{kind}-server]
use = egg:swift#{kind}
"""


class Cache:
    """What Swift asks of memcached, for one process."""

    def __init__(self):
        self.items = {}

    def get(self, key, raise_on_error=False, **_):
        return self.items.get(key)

    def set(self, key, value, **_):
        self.items[key] = value

    def delete(self, key, **_):
        self.items.pop(key, None)


def with_cache(app):
    cache = Cache()

    def call(environ, start_response):
        environ["swift.cache"] = cache
        return app(environ, start_response)
    return call


class Faults:
    """Lets requests fail by the rules in FOLDER/faults. A rule counts from when its file was written."""

    CODES = {"403": "AccessDenied", "404": "NoSuchKey", "500": "InternalError", "503": "SlowDown"}

    def __init__(self, app, folder):
        self.app, self.folder, self.rules = app, folder, {}
        for part in ("faults", "requests"):
            os.makedirs(os.path.join(folder, part), exist_ok=True)

    def __call__(self, environ, start_response):
        query = urllib.parse.parse_qs(environ.get("QUERY_STRING", ""), keep_blank_values=True)
        whole = environ["PATH_INFO"].rstrip("/") + "/" + query.get("prefix", [""])[0]
        name, _, key = whole[1:].partition("/")[2].rstrip("/").partition("/")
        rule = self.rule(name)
        if rule is None:
            return self.app(environ, start_response)
        kind, key = self.kind(environ, query), re.sub(r"-[0-9a-f]{9,16}(?=[-./]|$)", "-*", key)  # the number of an attempt
        fails = self.fails(rule, kind, key)
        with open(os.path.join(self.folder, "requests", name), "a") as file:
            file.write(json.dumps([kind, key, fails]) + "\n")
        return self.fail(rule["answer"], environ, start_response) if fails else self.app(environ, start_response)

    def rule(self, name):
        path = os.path.join(self.folder, "faults", name)
        try:
            status = os.stat(path)
        except OSError:
            return None
        stamp = (status.st_mtime_ns, status.st_ino)
        if not stat.S_ISREG(status.st_mode):
            return None
        if self.rules.get(name, {}).get("stamp") != stamp:
            with open(path) as file:
                self.rules[name] = dict(json.load(file), stamp=stamp, seen=0, failed=0, first=None)
        return self.rules[name]

    @staticmethod
    def kind(environ, query):
        method = environ["REQUEST_METHOD"]
        if "uploads" in query or "uploadId" in query:
            return "UPLOAD"
        if method == "GET" and ("list-type" in query or "prefix" in query):
            return "LIST"
        return "COPY" if method == "PUT" and "HTTP_X_AMZ_COPY_SOURCE" in environ else method

    @staticmethod
    def fails(rule, kind, key):
        same = kind in rule.get("kind", "").split(",")
        meant = same and fnmatch.fnmatchcase(key, rule["key"])
        if rule["first"] is None:
            rule["seen"] += meant
            if rule["seen"] < rule.get("number", 1):
                return False
            rule["first"] = time.monotonic()
        wanted = {"key": meant, "kind": same, "all": True}[rule.get("scope", "key")]
        fails = wanted and rule["failed"] < rule.get("times", math.inf) and time.monotonic() - rule["first"] <= rule.get("seconds", math.inf)
        rule["failed"] += fails
        return fails

    def fail(self, answer, environ, start_response):
        if answer == "slow":
            eventlet.sleep(1)
            return self.app(environ, start_response)
        if answer == "reset":
            connection = environ["eventlet.input"].get_socket()
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()
            raise ConnectionResetError
        if answer == "cut":
            return self.cut(environ, start_response)
        environ["wsgi.input"].read()
        body = ("<?xml version='1.0'?><Error><Code>%s</Code><Message>a fault</Message></Error>" % self.CODES.get(answer, "Fault")).encode()
        start_response(answer + " a fault", [("Content-Type", "application/xml"), ("Content-Length", str(len(body))), ("Connection", "close")])
        return [body if environ["REQUEST_METHOD"] != "HEAD" else b""]

    def cut(self, environ, start_response):
        body = b"".join(self.app(environ, start_response))
        yield body[:len(body) // 2]
        raise ConnectionResetError


def listen(port=0):
    listener = eventlet.listen(("127.0.0.1", port), backlog=200)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def write(path, text):
    with open(path, "w") as file:
        file.write(text)
    return path


def ring(folder, name, port):
    builder = RingBuilder(2, 1, 0)
    builder.add_dev({"id": 0, "region": 1, "zone": 1, "ip": "127.0.0.1", "port": port, "device": "disk", "weight": 1})
    builder.rebalance()
    builder.get_ring().save(os.path.join(folder, name + ".ring.gz"))


def make_bucket(app, name):
    environ = {"REQUEST_METHOD": "PUT", "swift.authorize_override": True, "swift_owner": True, "reseller_request": True}
    status = Request.blank("/v1/AUTH_test/" + name, environ=environ).call_application(app)[0]
    if not status.startswith("2"):
        sys.exit("the bucket was not made: " + status)


def main():
    folder = os.path.abspath(sys.argv[1])
    bucket = sys.argv[2]
    port = int(sys.argv[3]) if len(sys.argv) > 3 else 0
    os.makedirs(os.path.join(folder, "devices", "disk"), exist_ok=True)
    write(os.path.join(folder, "swift.conf"), "[swift-hash]\nswift_hash_path_suffix = tests\n[storage-policy:0]\nname = one\ndefault = yes\n")
    utils.SWIFT_CONF_FILE = os.path.join(folder, "swift.conf")
    utils.HASH_PATH_SUFFIX = b"tests"
    reload_storage_policies()
    logging.disable(logging.CRITICAL)
    silent = logging.getLogger("silent")
    for kind in BACKENDS:
        listener = listen()
        ring(folder, kind, listener.getsockname()[1])
        app = loadapp(write(os.path.join(folder, kind + ".conf"), BACKEND.format(folder=folder, kind=kind)), global_conf={"log_level": "CRITICAL"})
        eventlet.spawn(eventlet.wsgi.server, listener, app, silent, debug=False)
    listener = listen(port)
    app = loadapp(write(os.path.join(folder, "proxy.conf"), PROXY.format(folder=folder)), global_conf={"log_level": "CRITICAL"})
    app = with_cache(app)
    make_bucket(app, bucket)
    app = Faults(app, folder)
    print("ready", listener.getsockname()[1], flush=True)
    eventlet.wsgi.server(listener, app, silent, debug=False)


if __name__ == "__main__":
    main()
