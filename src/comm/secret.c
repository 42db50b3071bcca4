/* The secret of a job: made, read from the environment, and used as a key. Owns nothing. Called by
 * channels, which prove the secret, and by launchers of ranks. */
#include "comm/secret.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/scope.h"

enum { LEAST_CHARACTERS = 16, MOST_CHARACTERS = 4096 };
#define ADVICE "SMELT_SECRET=$(openssl rand -hex 32)"

bool secret_random(void *bytes, size_t count, Error *error) {
    for (size_t have = 0; have < count;) {
        ssize_t got = getrandom((char *)bytes + have, count - have, 0);
        if (got < 0 && errno != EINTR)
            return error_set(error, ERROR_INTERNAL, "cannot read random bytes from the system: %s", strerror(errno));
        if (got > 0) have += (size_t)got;
    }
    return true;
}

static Secret sign(const void *key, size_t key_bytes, const void *data, size_t bytes) {
    Secret proof = {0};
    HMAC(EVP_sha256(), key, (int)key_bytes, data, bytes, proof.bytes, NULL);
    return proof;
}

Secret secret_sign(const Secret *secret, const void *data, size_t bytes) { return sign(secret->bytes, SECRET_BYTES, data, bytes); }

bool secret_equal(const Secret *a, const Secret *b) { return CRYPTO_memcmp(a->bytes, b->bytes, SECRET_BYTES) == 0; }

/* -- The environment ----------------------------------------------------------------------------------------------- */

/* Returns the text of SMELT_SECRET_FILE, for the caller to free, or NULL. */
static char *read_secret(const char *path, Error *error) {
    struct stat status;
    char *text = file_read(path, MOST_CHARACTERS, NULL, error);
    if (!text || stat(path, &status) != 0) {
        error_recode(error, ERROR_USAGE);
    } else if ((status.st_mode & 077) || (status.st_uid != geteuid() && status.st_uid != 0)) {
        error_set(error, ERROR_USAGE, "%s has mode %03o and owner %d, but only you may own and read it: run chmod 600 %s", path,
            status.st_mode & 0777, (int)status.st_uid, path);
    } else {
        return text;
    }
    error_context(error, "SMELT_SECRET_FILE");
    free(text);
    return NULL;
}

bool secret_find(const char *who, Secret *secret, Error *error) {
    const char *given = getenv("SMELT_SECRET"), *path = getenv("SMELT_SECRET_FILE");
    bool in_file = !(given && *given) && path && *path;
    SCOPED_FREE char *text = in_file ? read_secret(path, error) : memory_copy_string(given ? given : "");
    if (!text) return false;
    size_t length = strlen(text);
    while (length > 0 && strchr(" \t\r\n", text[length - 1])) length--;
    if (!length && !in_file)
        return error_set(error, ERROR_USAGE,
            "%s need a secret to authenticate each other: start all of them with the same " ADVICE
            " in the environment, or with SMELT_SECRET_FILE set to a file that contains it and that only you may read",
            who);
    if (length < LEAST_CHARACTERS || length > MOST_CHARACTERS)
        return error_set(error, ERROR_USAGE, "%s has %zu characters; it must have %d to %d random ones: " ADVICE,
            in_file ? path : "SMELT_SECRET", length, LEAST_CHARACTERS, MOST_CHARACTERS);
    *secret = sign(text, length, "smelt", sizeof "smelt");
    return true;
}

char *secret_variable(const Secret *secret) {
    char text[2 * SECRET_BYTES + 1];
    for (int i = 0; i < SECRET_BYTES; i++) snprintf(text + 2 * i, 3, "%02x", secret->bytes[i]);
    return memory_format("SMELT_SECRET=%s", text);
}
