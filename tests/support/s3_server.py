#!/usr/bin/python3
"""A real S3 server for the tests: OpenStack Swift with its S3 interface, one process, one folder, no privileges.

    tests/support/s3_server.py FOLDER BUCKET [PORT]     makes the bucket, prints "ready PORT" and serves until it is killed

Access key test:tester, secret testing, region us-east-1. Needs Debian's swift-proxy, swift-account, swift-container and swift-object, and a FOLDER
on a file system with extended attributes. What FOLDER holds outlives the server: a second start on it serves the same objects.
"""
import logging
import os
import socket
import sys

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
    print("ready", listener.getsockname()[1], flush=True)
    eventlet.wsgi.server(listener, app, silent, debug=False)


if __name__ == "__main__":
    main()
